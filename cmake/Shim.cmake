# accelera_add_shim(): the library that catches calls of torch, for the one torch that Python sees. Its sources
# are installed as well: `accelera build-shim` compiles them for a torch that came later.
# Without torch it is left out; when it does not compile against this torch it is left out with a warning.
set(ACCELERA_SHIM ON CACHE BOOL "Build the shim for the installed torch, if there is one")

function(accelera_add_shim)
  install(DIRECTORY csrc/torch DESTINATION accelera/csrc)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/cmake/find_torch.py"
    OUTPUT_VARIABLE torch ERROR_VARIABLE reason OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(NOT ACCELERA_SHIM OR NOT UNIX OR failed)
    message(STATUS "No shim for torch: ${reason}")
    return()
  endif()
  list(GET torch 0 folder)
  list(GET torch 1 version)
  set(recipe "${PROJECT_SOURCE_DIR}/src/accelera/interceptor/hooks/shim_build.py")
  set(shim "${CMAKE_CURRENT_BINARY_DIR}/_shim-${version}.so")
  file(GLOB sources CONFIGURE_DEPENDS csrc/torch/*)
  add_custom_command(
    OUTPUT "${shim}"
    COMMAND "${Python_EXECUTABLE}" "${recipe}" --compiler "${CMAKE_CXX_COMPILER}"
      --torch "${folder}" --sources "${PROJECT_SOURCE_DIR}/csrc" --out "${shim}"
    DEPENDS ${sources} "${recipe}" "${folder}/version.py"
    COMMENT "Shim for torch ${version}" VERBATIM)
  add_custom_target(_shim ALL DEPENDS "${shim}")
  install(FILES "${shim}" DESTINATION accelera OPTIONAL)
endfunction()

# accelera_add_stable_shim(): the same for any torch, which it meets through torch's C functions only.
function(accelera_add_stable_shim)
  if(NOT UNIX)
    return()
  endif()
  add_library(_stable MODULE csrc/torch/stable.cpp)
  set_target_properties(_stable PROPERTIES PREFIX "" SUFFIX ".so" CXX_VISIBILITY_PRESET hidden)
  target_compile_options(_stable PRIVATE -Wall -Wextra "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/csrc/=")
  target_link_libraries(_stable PRIVATE ${CMAKE_DL_LIBS})
  install(TARGETS _stable LIBRARY DESTINATION accelera)
endfunction()
