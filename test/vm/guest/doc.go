// Package guest runs programs on other kernels: it boots a Debian kernel in QEMU, without hardware
// virtualization, runs a command there as root, and returns its output, its files and its exit
// status.
//
// Nothing is installed. Kernels, QEMU and the guest's programs are Debian packages that a private
// apt instance downloads from the machine's own mirror; they stay unpacked in the cache. The guest
// has no disk and no network: everything it needs is in its initial file system.
//
//	packages --> .cache/vm/tools              QEMU; the guest's programs and libraries
//	         --> .cache/vm/kernels/6.1        vmlinuz and modules
//	                        |
//	                 image: a cpio archive, built once for each kernel
//	                        + the job's files, a second archive behind it
//	                        |
//	                      QEMU --ttyS0--> output
//	                           --ttyS1--> a tar archive: exit status and /results
package guest
