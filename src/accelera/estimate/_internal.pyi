from .prediction import local_machine as local_machine
from .subject import subject_of as subject_of
