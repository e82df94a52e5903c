//! Files and pipes.

use crate::check;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Reads the next entries of an open directory (`getdents64`) into a buffer, without allocating. Returns the
/// number of bytes filled with records of `struct linux_dirent64`, 0 at the end of the directory.
///
/// # Errors
/// The call fails if the directory cannot be read (any more), or the buffer is too small for the next entry
/// (`EINVAL`).
pub fn read_entries(directory: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    let fd = directory.as_fd().as_raw_fd();
    let (bytes, size) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: the kernel writes at most `size` bytes to the buffer, which is that large.
    check(unsafe { libc::syscall(libc::SYS_getdents64, fd, bytes, size) })
}

/// The number of bytes that were written to a pipe and not read yet (`FIONREAD`).
///
/// # Errors
/// The call fails if the descriptor is no pipe, socket or terminal (`ENOTTY`).
pub fn unread_bytes(pipe: impl AsFd) -> io::Result<usize> {
    let mut unread: libc::c_int = 0;
    let fd = pipe.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and FIONREAD writes one int.
    check(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut unread) }.into())?;
    Ok(usize::try_from(unread).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_pipe_knows_what_is_unread() {
        let (read, write) = nix::unistd::pipe().unwrap();
        assert_eq!(unread_bytes(&read).unwrap(), 0);
        nix::unistd::write(&write, b"12345").unwrap();
        assert_eq!(unread_bytes(&write).unwrap(), 5);
        let file = File::open("/proc/self").unwrap();
        assert!(unread_bytes(&file).is_err());
    }

    #[test]
    fn a_directory_has_entries_up_to_its_end() {
        let directory = File::open("/proc/self").unwrap();
        let mut buffer = vec![0; 4096];
        let first = read_entries(&directory, &mut buffer).unwrap();
        assert!(first > 0 && first <= buffer.len());
        while read_entries(&directory, &mut buffer).unwrap() > 0 {}
        let mut small = [0; 8];
        let directory = File::open("/proc/self").unwrap();
        assert!(read_entries(&directory, &mut small).is_err());
    }
}
