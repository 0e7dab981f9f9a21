// Package comparison runs other programs and checks what docs/comparison.md says of them: `make comparison`.
//
// It is a test behind the build tag comparison, as it downloads and compiles these programs, each with the versions that its own
// module names. The servers of a test listen on loopback and end with the test.
package comparison
