//! Structures that BPF programs share with their loader. `shared.rs` of this crate's folder writes them.

/// A structure of integers without padding, for which any bytes are a value.
///
/// # Safety
/// The implementor has no padding and no invalid bit patterns.
pub unsafe trait Plain: Copy {}

/// A structure of atomics: a reference to one in mapped memory is sound while the kernel writes there.
pub use quell_sys::mapping::SharedMemory as Shared;

/// The bytes of a value.
pub fn as_bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: T has no padding (Plain), and the slice borrows the value.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// A value from its bytes; missing bytes are zero.
pub fn from_bytes<T: Plain>(bytes: &[u8]) -> T {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let length = bytes.len().min(size_of::<T>());
    // SAFETY: at most size_of::<T>() bytes are copied into T's memory, and any bytes are a T (Plain).
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast(), length);
        value.assume_init()
    }
}
