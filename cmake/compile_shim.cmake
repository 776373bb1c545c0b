# Run as a script: compile csrc/torch/shim.cpp into SHIM. A failure is told and leaves the shim out.
# Torch's libraries are named but no path to them is kept: Python has loaded them before the shim.
set(linking "-L${TORCH}/lib" -Wl,--no-as-needed -ltorch_python -ltorch_cpu -lc10)
if(SYSTEM STREQUAL "Darwin")
  set(linking -undefined dynamic_lookup)
endif()
file(REMOVE "${SHIM}")
execute_process(
  COMMAND "${COMPILER}" -std=c++20 -O2 -DNDEBUG -Wall -Wextra -fPIC -fvisibility=hidden -shared
    "-ffile-prefix-map=${TORCH}/include/=" "-ffile-prefix-map=${SOURCES}/="
    "-I${SOURCES}" -isystem "${TORCH}/include" -isystem "${PYTHON}" -isystem "${TORCH}/include/torch/csrc/api/include"
    "${SOURCES}/torch/shim.cpp" -o "${SHIM}" ${linking}
  RESULT_VARIABLE failed)
if(failed)
  file(REMOVE "${SHIM}")
  message(WARNING "the shim does not compile against the torch in ${TORCH} and is left out; "
                  "calls of torch are caught another way")
endif()
