//! The memory that this process takes of the host.
//!
//! Problem: an agent that is to run on every host should be small, and half of its memory is the code and the
//! constants of its program, of which most was needed only once: to read arguments and files, and to load BPF
//! programs.
//!
//! Approach: once the agent has started, the pages of the program that are mapped so far are given back.
//! Pages that it needs from then on are mapped again from the file, which the kernel still caches, at their
//! first use: a hundred faults of a microsecond.

use libc::{PF_W, PT_LOAD, c_int, c_void, dl_iterate_phdr, dl_phdr_info, size_t};
use nix::sys::mman::{MmapAdvise, madvise};
use nix::unistd::SysconfVar;
use std::ptr::{self, NonNull};

/// Has all threads allocate from one heap, where the C library is GNU's, which by default has several heaps.
/// For a program that has not started another thread. If the library refuses, it has several heaps as before.
pub fn use_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a setting of the allocator, which takes a lock of its own.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Gives back the mapped pages of the program's code and constants. Pages that are used again come back by
/// page faults.
pub fn trim_startup_pages() {
    // SAFETY: the callback is as dl_iterate_phdr wants it, and uses nothing but what it is given.
    unsafe { dl_iterate_phdr(Some(trim), ptr::null_mut()) };
}

/// Handles the first object, which is the program itself; the libraries are shared with other processes.
unsafe extern "C" fn trim(object: *mut dl_phdr_info, _: size_t, _: *mut c_void) -> c_int {
    let page = nix::unistd::sysconf(SysconfVar::PAGE_SIZE);
    let Some(page) = page.ok().flatten().and_then(|it| usize::try_from(it).ok()) else {
        return 1;
    };
    // SAFETY: dl_iterate_phdr passes an object that lives as long as this call.
    let object = unsafe { &*object };
    for at in 0..usize::from(object.dlpi_phnum) {
        // SAFETY: the object has `dlpi_phnum` headers, and they live as long as the object.
        let header = unsafe { &*object.dlpi_phdr.add(at) };
        if header.p_type != PT_LOAD || header.p_flags & PF_W != 0 {
            continue;
        }
        let start = (object.dlpi_addr + header.p_vaddr) as usize;
        let (from, to) = (
            start.next_multiple_of(page),
            start + header.p_filesz as usize,
        );
        let (Some(from), Some(length)) = (
            NonNull::new(from as *mut c_void),
            (to & !(page - 1)).checked_sub(from),
        ) else {
            continue;
        };
        // SAFETY: those pages are a private mapping of the program's file to which nothing may write, so they
        // are the same when they are mapped again; the file cannot be changed while it runs. If the call is
        // refused, the pages stay.
        let _ = unsafe { madvise(from, length, MmapAdvise::MADV_DONTNEED) };
    }
    // A non-zero result ends the iteration.
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of pages of files that are in this process's memory.
    fn of_files() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(2).unwrap().parse().unwrap()
    }

    #[test]
    fn what_was_forgotten_comes_again() {
        let before = of_files();
        trim_startup_pages();
        let after = of_files();
        assert!(after < before, "{after} pages after {before}");
        // Uses code and constants that were not used before.
        let text = format!("{:?}", std::time::Duration::from_millis(1500));
        assert_eq!(text, "1.5s");
    }
}
