//! Memory that is shared with the kernel (the values of a BPF map) or with another process (a file).

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A type whose values may lie in memory that others write at any time.
///
/// # Safety
/// The type consists of atomics, and of padding, only; every bit pattern of that size is a value of it.
pub unsafe trait SharedMemory: Sync {}

// SAFETY: one atomic, for which every bit pattern is valid.
unsafe impl SharedMemory for AtomicU64 {}

/// What the kernel lets this process do with a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To read. The atomics must not be written: the process would be ended by a signal.
    Read,
    /// To read and to write.
    ReadWrite,
}

/// A number of `T`s at the start of a file, mapped into this process until this is dropped.
#[derive(Debug)]
pub struct Mapped<T: SharedMemory> {
    memory: NonNull<T>,
    count: usize,
}

// SAFETY: the mapping belongs to no thread, and what is in it is atomic (`SharedMemory`).
unsafe impl<T: SharedMemory> Send for Mapped<T> {}
// SAFETY: as above; a shared reference gives shared references only, and `T` is `Sync`.
unsafe impl<T: SharedMemory> Sync for Mapped<T> {}

impl<T: SharedMemory> Mapped<T> {
    /// Maps the first `count` `T`s of a file, or of the memory of a BPF map.
    ///
    /// The file must be that long for as long as the mapping lives: if it is cut, an access ends the process
    /// by a signal.
    ///
    /// # Errors
    /// The call fails if `count` is 0 (`EINVAL`), the file cannot be mapped for that access, or there is no
    /// memory for it.
    pub fn new(file: impl AsFd, count: usize, access: Access) -> io::Result<Mapped<T>> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096) };
        let bytes = count
            .checked_mul(size_of::<T>())
            .and_then(NonZeroUsize::new);
        let bytes = bytes.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let protection = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let memory = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, file, 0) };
        let memory = memory.map_err(io::Error::from)?.cast();
        Ok(Mapped { memory, count })
    }

    /// All `T`s of the mapping.
    pub fn all(&self) -> &[T] {
        // SAFETY: the mapping has that many, lives as long as self, and is aligned to a page; any bytes are
        // values, which others may write at any time (`SharedMemory`).
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.count) }
    }
}

impl<T: SharedMemory> Drop for Mapped<T> {
    fn drop(&mut self) {
        let bytes = self.count * size_of::<T>();
        // SAFETY: this is the mapping that new() made; every reference into it borrows its single owner.
        let _ = unsafe { munmap(self.memory.cast::<c_void>(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn two_mappings_of_a_file_are_the_same_memory() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let written: Mapped<AtomicU64> = Mapped::new(&file, 3, Access::ReadWrite).unwrap();
        let read: Mapped<AtomicU64> = Mapped::new(&file, 2, Access::Read).unwrap();
        written.all()[1].store(7, Relaxed);
        assert_eq!((written.all().len(), read.all().len()), (3, 2));
        assert_eq!(read.all()[1].load(Relaxed), 7);
        let none = Mapped::<AtomicU64>::new(&file, 0, Access::Read);
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
