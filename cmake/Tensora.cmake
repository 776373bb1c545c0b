# accelera_add_tensora(): the extension module of accelera.tensora. It takes minutes to build and the engine
# does not need it: `make demo` leaves it out.
set(ACCELERA_TENSORA ON CACHE BOOL "Build the tensor library, accelera._tensora")

# A loop file compiled for one instruction set; `isa` is the namespace that its functions get.
function(tensora_kernels file isa march)
  get_filename_component(name "${file}" NAME_WE)
  add_library(tensora_${name}_${isa} OBJECT "${file}")
  target_include_directories(tensora_${name}_${isa} PRIVATE csrc)
  target_compile_features(tensora_${name}_${isa} PRIVATE cxx_std_20)
  target_compile_definitions(tensora_${name}_${isa} PRIVATE TENSORA_ISA=${isa})
  target_compile_options(tensora_${name}_${isa} PRIVATE
    -Wall -Wextra -O2 -ftree-loop-vectorize -fvect-cost-model=dynamic -fvisibility=hidden -fno-math-errno -fno-trapping-math -ffp-contract=fast)
  if(march)
    target_compile_options(tensora_${name}_${isa} PRIVATE -march=${march})
  endif()
  target_sources(accelera_tensora INTERFACE $<TARGET_OBJECTS:tensora_${name}_${isa}>)
endfunction()

function(accelera_add_tensora)
  if(NOT ACCELERA_TENSORA)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS csrc/tensora/base/*.cpp csrc/tensora/device/*.cpp csrc/tensora/core/*.cpp csrc/tensora/cuda/*.cpp
       csrc/tensora/jit/*.cpp csrc/tensora/ops/*.cpp)
  file(GLOB bindings CONFIGURE_DEPENDS csrc/tensora/bindings/*.cpp)
  add_library(accelera_tensora OBJECT ${sources} csrc/tensora/kernels/blas.cpp csrc/tensora/kernels/loops.cpp)
  accelera_set_core_options(accelera_tensora)
  nanobind_add_module(_tensora STABLE_ABI NB_STATIC NOMINSIZE ${bindings})
  set(isas base)
  set(march_base "")
  # Builds that observe the code have the kernels once: the wider instruction sets are the same sources.
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT ACCELERA_SANITIZE AND NOT ACCELERA_COVERAGE)
    target_compile_definitions(accelera_tensora PUBLIC TENSORA_X86)
    set(isas base v3 v4)
    set(march_base x86-64-v2)
    set(march_v3 x86-64-v3)
    set(march_v4 x86-64-v4)
  endif()
  foreach(isa IN LISTS isas)
    tensora_kernels(csrc/tensora/kernels/elementwise.cpp ${isa} "${march_${isa}}")
    tensora_kernels(csrc/tensora/kernels/reduce.cpp ${isa} "${march_${isa}}")
    tensora_kernels(csrc/tensora/kernels/windows.cpp ${isa} "${march_${isa}}")
    tensora_kernels(csrc/tensora/kernels/rows.cpp ${isa} "${march_${isa}}")
    # An element's bits must not depend on the loop that computes it: fused, in blocks, or on its own.
    target_compile_options(tensora_elementwise_${isa} PRIVATE -ffp-contract=off -fwrapv)  # integers wrap, as NumPy's
    target_compile_options(tensora_rows_${isa} PRIVATE -fopenmp-simd $<$<STREQUAL:${isa},v4>:-mprefer-vector-width=512>)
    # Sums in any order; nowhere else, since it would lose the sign of zero.
    target_compile_options(tensora_reduce_${isa} PRIVATE -fassociative-math -fno-signed-zeros -fwrapv)
  endforeach()
  set_source_files_properties(csrc/tensora/ops/reduction.cpp PROPERTIES COMPILE_OPTIONS -fwrapv)  # scans of integers
  # Types that a wider instruction set does not speed up are compiled for the baseline only.
  target_compile_definitions(tensora_elementwise_base PRIVATE TENSORA_ALL_TYPES)
  target_compile_features(accelera_tensora PUBLIC cxx_std_20)
  target_include_directories(_tensora PRIVATE csrc)
  # Thread-local variables are read with every operation: by offset, not by a call. That takes static storage, of
  # which glibc keeps little for libraries that are loaded later: large variables are pointers.
  target_compile_options(accelera_tensora PUBLIC -Wall -Wextra -O2 -ftls-model=initial-exec)
  # The sources of the CUDA kernels lie in the library as text: they are compiled where they run.
  target_compile_definitions(accelera_tensora PRIVATE TENSORA_SOURCES="${PROJECT_SOURCE_DIR}/csrc/")
  file(GLOB device_texts CONFIGURE_DEPENDS csrc/tensora/cuda/*.cuh)
  set_source_files_properties(csrc/tensora/cuda/compiler.cpp PROPERTIES OBJECT_DEPENDS
    "${device_texts};${PROJECT_SOURCE_DIR}/csrc/tensora/base/element.h;${PROJECT_SOURCE_DIR}/csrc/tensora/base/device_math.cuh;${PROJECT_SOURCE_DIR}/csrc/tensora/kernels/math.h;${PROJECT_SOURCE_DIR}/csrc/tensora/kernels/scalar.h;${PROJECT_SOURCE_DIR}/csrc/tensora/kernels/formulas.def")
  target_link_libraries(accelera_tensora PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
  target_link_libraries(_tensora PRIVATE accelera_tensora)
  install(TARGETS _tensora LIBRARY DESTINATION accelera)
endfunction()
