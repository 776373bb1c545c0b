from .api import estimate as estimate
from .prediction import predict_compile as predict_compile
from .report import Estimate as Estimate
