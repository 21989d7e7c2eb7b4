# RPMs for RHEL 9, of the same components. rpmbuild itself finds the versions of the C library's symbols that each needs.
set(CPACK_GENERATOR RPM)
set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_LICENSE Apache-2.0)
set(CPACK_RPM_PACKAGE_RELEASE 1.el9)
# The same files give the same bytes.
set(CPACK_RPM_SPEC_MORE_DEFINE "\
%define _build_id_links none
%define use_source_date_epoch_as_buildtime 1
%define clamp_mtime_to_source_date_epoch 1
%define _buildhost amem
%define __os_install_post %{nil}
%{!?systemd_post:%{load:${CMAKE_CURRENT_SOURCE_DIR}/rpm/macros.systemd}}")
# Folders of the system.
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION
  /etc/logrotate.d /usr/lib/systemd /usr/lib/systemd/system /usr/lib/sysusers.d /usr/lib/tmpfiles.d /usr/lib64/pkgconfig /usr/lib64/cmake
  /usr/share/man /usr/share/man/man1 /usr/share/man/man5 /usr/share/man/man8 /usr/share/bash-completion
  /usr/share/bash-completion/completions /usr/share/fish /usr/share/fish/vendor_completions.d /usr/share/zsh
  /usr/share/zsh/vendor-completions)

# amem_rpms(): after all of amem_package(), whose values for Debian it takes.
macro(amem_rpms)
  foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    string(TOUPPER ${component} upper)
    string(REPLACE "libamem-client0" "libamem-client" name ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
    string(REPLACE "-dev" "-devel" name ${name})
    string(FIND "${CPACK_COMPONENT_${upper}_DESCRIPTION}" "\n" end)
    string(SUBSTRING "${CPACK_COMPONENT_${upper}_DESCRIPTION}" 0 ${end} summary)
    string(SUBSTRING "${CPACK_COMPONENT_${upper}_DESCRIPTION}" ${end} -1 description)
    string(REPLACE "\n.\n" "\n\n" description "${description}")
    string(STRIP "${description}" description)
    set(CPACK_RPM_${upper}_PACKAGE_NAME ${name})
    set(CPACK_RPM_${upper}_PACKAGE_SUMMARY ${summary})
    set(CPACK_RPM_${upper}_PACKAGE_DESCRIPTION ${description})
  endforeach()
  set(same "= ${PROJECT_VERSION}-${CPACK_RPM_PACKAGE_RELEASE}")
  set(CPACK_RPM_AMEMD_PACKAGE_REQUIRES "libamem-shim ${same}, systemd")
  set(CPACK_RPM_AMEMD_USER_FILELIST "%config(noreplace) /etc/amem/amemd.toml" "%config(noreplace) /etc/logrotate.d/amemd")
  set(CPACK_RPM_AMEMD_PRE_INSTALL_SCRIPT_FILE ${scripts}/pre)
  set(CPACK_RPM_AMEMD_POST_INSTALL_SCRIPT_FILE ${scripts}/post)
  set(CPACK_RPM_AMEMD_PRE_UNINSTALL_SCRIPT_FILE ${scripts}/preun)
  set(CPACK_RPM_AMEMD_POST_UNINSTALL_SCRIPT_FILE ${scripts}/postun)
  set(CPACK_RPM_SHIM_PRE_INSTALL_SCRIPT_FILE ${scripts}/pre)
  set(CPACK_RPM_SHIM_PRE_UNINSTALL_SCRIPT_FILE ${scripts}/preun-shim)
  set(CPACK_RPM_CLIENT_DEV_PACKAGE_REQUIRES "libamem-client ${same}")
  set(CPACK_RPM_SIM_DRIVER_PACKAGE_REQUIRES "amemd ${same}, python3")
  # Nobody is to get it in place of NVIDIA's driver, nor the shim by the name of its file; what it needs of its own has no name then.
  set(CPACK_RPM_SIM_DRIVER_PACKAGE_AUTOPROV NO)
  set(CPACK_RPM_SIM_DRIVER_PACKAGE_AUTOREQ NO)
  set(CPACK_RPM_SHIM_PACKAGE_AUTOPROV NO)
endmacro()
