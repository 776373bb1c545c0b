from .prediction import local_machine as local_machine
from .report import Phase as Phase
from .subject import subject_of as subject_of
