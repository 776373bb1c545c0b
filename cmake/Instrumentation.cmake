# Builds that observe the C++ code: sanitizers, coverage, and the C++ tests.

set(ACCELERA_SANITIZE "" CACHE STRING "Sanitizers of the compiler: address,undefined or thread")
option(ACCELERA_COVERAGE "Count the executions of each line of csrc" OFF)

if(ACCELERA_SANITIZE)
  # All reports of undefined behavior are errors. Without alignment checks of unsigned offsets the report would
  # name every pointer below another.
  add_compile_options(-fsanitize=${ACCELERA_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${ACCELERA_SANITIZE})
  if(ACCELERA_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=all)
  endif()
  # The resolvers of multiversioned functions run before the sanitizer's own start.
  add_compile_definitions(ACCELERA_SANITIZED)
endif()
if(ACCELERA_COVERAGE)
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()

# Options of the code that an extension module and the C++ tests share; those that nanobind gives to modules.
function(accelera_set_core_options target)
  target_include_directories(${target} PUBLIC csrc PRIVATE ${NB_DIR}/include)
  target_link_libraries(${target} PUBLIC Threads::Threads)
  nanobind_disable_stack_protector(${target})
  nanobind_set_visibility(${target})
endfunction()

# accelera_tests: the C++ tests, built on demand (`make test-native`), from the object files of the modules.
function(accelera_add_tests)
  if(NOT ACCELERA_TENSORA)
    return()
  endif()
  # An isolated build of a wheel does not have the BLAS, and builds no tests.
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import scipy_openblas32 as blas; print(blas.get_lib_dir(), blas.get_library(), sep='/lib')"
    OUTPUT_VARIABLE blas OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE blas_is_absent ERROR_QUIET)
  if(blas_is_absent)
    return()
  endif()
  file(GLOB tests CONFIGURE_DEPENDS tests/native/*.cpp)
  add_executable(accelera_tests EXCLUDE_FROM_ALL ${tests})
  target_include_directories(accelera_tests PRIVATE third_party tests ${NB_DIR}/include)
  target_link_libraries(accelera_tests PRIVATE accelera_native accelera_tensora)
  target_compile_definitions(accelera_tests PRIVATE ACCELERA_TEST_BLAS="${blas}.so")
endfunction()
