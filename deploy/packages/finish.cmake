# After CPack has made the packages: what it does not do by itself. Each is taken apart and put together again by dpkg-deb, which sorts
# what is in it and takes all times from SOURCE_DATE_EPOCH, so that the same files give the same bytes.
foreach(package IN LISTS CPACK_PACKAGE_FILES)
  set(folder ${CPACK_TEMPORARY_DIRECTORY}/finish)
  file(REMOVE_RECURSE ${folder})
  execute_process(COMMAND dpkg-deb --raw-extract ${package} ${folder} COMMAND_ERROR_IS_FATAL ANY)

  # CPack's own scripts call ldconfig, for any library. Where that is needed, the package has a trigger.
  foreach(script postinst postrm)
    if(EXISTS ${folder}/DEBIAN/${script})
      file(READ ${folder}/DEBIAN/${script} text)
      if(text MATCHES "\n\tldconfig\n")
        file(REMOVE ${folder}/DEBIAN/${script})
      endif()
    endif()
  endforeach()

  file(READ ${folder}/DEBIAN/control control)
  string(STRIP "${control}\n" control)
  string(REGEX MATCH "Package: ([^\n]+)\n" name "${control}")
  if(CPACK_AMEM_MULTI_ARCH_${CMAKE_MATCH_1})
    string(APPEND control "\nMulti-Arch: ${CPACK_AMEM_MULTI_ARCH_${CMAKE_MATCH_1}}")
  endif()
  file(WRITE ${folder}/DEBIAN/control "${control}\n")

  execute_process(COMMAND dpkg-deb --root-owner-group -Zxz --build ${folder} ${package} COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
endforeach()
