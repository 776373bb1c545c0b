from .api import accelera_matmul as accelera_matmul
from .api import disable as disable
from .api import enable as enable
from .api import intercepted as intercepted
from .api import should_intercept as should_intercept
from .statistics import followed as followed
from .statistics import stats as stats
