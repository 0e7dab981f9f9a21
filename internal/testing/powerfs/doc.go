// Package powerfs is a disk that loses its power: a FUSE file system in memory, on which a server runs in a test.
//
// [Disk.Fail] discards what was not synced. The model is a file system with a journal of names, as ext4 and XFS have:
//
//   - The bytes and the size of a file survive as they were at its last fsync or fdatasync, or at its last write through a descriptor with
//     O_SYNC or O_DSYNC. A file that was never synced is empty.
//   - Names change in one order on the whole disk: create, mkdir, rename, unlink, rmdir. Each sync of any file or folder makes all earlier
//     changes of names durable. A new file that was synced therefore has its name even if nobody synced its folder.
//   - Nothing else is ever written. A real kernel also writes by itself after some seconds, so real losses are at most as large. A real
//     disk may keep a part of what was not synced, or tear one write; this disk does neither.
//
// A Disk owns its mount and gives it back with the test. Any number of processes may use its folder. Before [Disk.Fail] the caller ends the
// processes that use the folder, as the power of one machine takes both. A disk needs Linux, /dev/fuse, and the right to mount: root, or the
// program fusermount3. Without them the test fails and names what is missing. The build tag powerloss keeps other tests from needing FUSE.
package powerfs
