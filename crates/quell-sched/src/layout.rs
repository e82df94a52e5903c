//! The structures that the loader shares with the BPF programs: `bpf/layout.h`, field by field.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

pub const MAX_CPUS: usize = 1024;
pub const MAX_DOMAINS: usize = 256;
pub const DOMAIN_CPUS: usize = 64;
pub const MAX_SERVERS: usize = 1024;
pub const MAX_SHARERS: usize = 16384;
pub const OFFLINE: u16 = 0x8000;
pub const NO_DOMAIN: u16 = 0x7fff;

/// `struct options`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Options {
    pub margin_ns: u64,
    pub stretch: u32,
    pub causal: u32,
    pub asymmetry: u32,
    pub share: u32,
    pub domains: u32,
    pub cpus: u32,
    pub observe: u32,
    pub requests: u32,
    pub criticality: u32,
    pub unused: u32,
    pub domain_of: [u16; MAX_CPUS],
}

/// `struct cpu_slot`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CpuSlot {
    pub deadline: u64,
    pub until: u64,
    pub pace: u64,
    pub began: u64,
    pub pinned: u32,
    pub offline: u8,
    pub movable: u8,
    pub aside: u8,
    pub visited: u8,
    pub runs: u64,
    pub wakeups_idle: u64,
    pub wakeups_preempting: u64,
    pub wakeups_queued: u64,
    pub kept: u64,
    pub wait_ns: u64,
    pub worst_wait_ns: u64,
    pub worst_wait_tid: u32,
    pub tid: u32,
    pub late: u64,
    pub rescued: u64,
    pub unused: u64,
}

/// `struct sharer`: the scheduler and its loader both write it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Sharer {
    pub tid: AtomicU32,
    pub weight: AtomicU32,
    pub group: AtomicU64,
    pub used: AtomicU64,
    pub wanted: AtomicU64,
    pub since: AtomicU64,
    pub served: AtomicU64,
    pub rate: AtomicU32,
    pub wants: AtomicU32,
    pub allowed: AtomicU16,
    pub cpu: AtomicU16,
    pub born: AtomicU32,
}

/// `struct places`: as that.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Places {
    pub end: AtomicU32,
    pub next: AtomicU32,
}

/// `struct domain`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Domain {
    pub clock: u64,
    pub owed: i64,
    pub load: u64,
    pub served_at: u64,
    pub room_at: u64,
    pub room_due: u64,
    pub look_at: u64,
    pub release_at: u64,
    /// When threads that waited for too long were last looked for.
    pub starved_at: u64,
    /// When those of its queue were put in order.
    pub sorted_at: u64,
    pub queued: u32,
    pub starved: u32,
    pub pinned: u32,
    pub parked: u32,
    pub online: u32,
    pub size: u32,
    pub cpu: [u16; DOMAIN_CPUS],
    pub padding: [u64; 3],
}

/// `struct group` (groups.bpf.h).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Group {
    pub parent: u64,
    pub weight: u32,
    pub counted: u32,
    pub active: u64,
    pub share: u64,
    pub at: u64,
    /// Quota, period, burst, when the period began, what is left, the next group with a limit.
    pub limit: [u64; 6],
    pub limit_seen: u32,
    pub limit_running: i32,
}

/// `struct exit_record`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ExitRecord {
    pub code: i64,
    pub kind: u32,
    pub unused: u32,
    pub reason: [u8; 128],
    pub message: [u8; 1024],
}

/// `struct thread_setting`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ThreadSetting {
    pub tid: u32,
    pub tenant: u32,
    pub weight: u32,
    pub server: u32,
    pub latency_ns: u64,
}

/// `struct server_terms` (policy/server.h).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ServerTerms {
    pub period: u64,
    pub optimistic: u64,
    pub pessimistic: u64,
    pub shortened: u64,
    pub part: u64,
    pub high: u32,
    pub temperature: u32,
}

/// `struct server` (policy/server.h).
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Server {
    pub terms: ServerTerms,
    pub began: u64,
    pub usual_at: u64,
    pub deadline: u64,
    pub virtual_deadline: u64,
    pub allowed: u64,
    pub used: u64,
    pub carried: u64,
    pub hot_until: u64,
}

/// `struct server_setting`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ServerSetting {
    pub server: u32,
    pub cpu: u32,
    pub terms: ServerTerms,
}

/// `struct server_slot`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ServerSlot {
    pub now: Server,
    pub next: ServerTerms,
    pub missed: u64,
    pub version: u32,
    pub applied: u32,
    pub cpu: u32,
    pub ready: u32,
    pub woke: u32,
    pub ended: u32,
}

/// `struct tenant_setting`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TenantSetting {
    pub tenant: u32,
    pub weight: u32,
}

impl ServerSlot {
    /// What it got.
    pub fn stats(&self) -> crate::ServerStats {
        crate::ServerStats {
            used_ns: self.now.used,
            missed: self.missed,
        }
    }
}

/// A sum of weights (fair.h) in the scale of cgroup v2.
pub fn weight(raw: u64) -> f64 {
    // As signed: what should not be there shows.
    raw as i64 as f64 / 1024.0
}

/// A structure of integers without padding, for which any bytes are a value.
///
/// # Safety
/// The implementor has no padding and no invalid bit patterns.
pub unsafe trait Plain: Copy {}

// SAFETY: repr(C) integers whose sizes sum up to the structures' sizes, asserted below.
unsafe impl Plain for Options {}
// SAFETY: as above.
unsafe impl Plain for CpuSlot {}
// SAFETY: as above.
unsafe impl Plain for Domain {}
// SAFETY: as above.
unsafe impl Plain for Group {}
// SAFETY: as above.
unsafe impl Plain for ExitRecord {}
// SAFETY: as above.
unsafe impl Plain for ThreadSetting {}
// SAFETY: as above.
unsafe impl Plain for TenantSetting {}
// SAFETY: as above.
unsafe impl Plain for ServerSetting {}
// SAFETY: as above.
unsafe impl Plain for ServerSlot {}

/// Its bytes.
pub fn as_bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: T has no padding (Plain), and the slice borrows the value.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// From its bytes; what lacks is zero.
pub fn from_bytes<T: Plain>(bytes: &[u8]) -> T {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let length = bytes.len().min(size_of::<T>());
    // SAFETY: at most size_of::<T>() bytes are copied into T's memory, and any bytes are a T (Plain).
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast(), length);
        value.assume_init()
    }
}

// The same as layout.h asserts.
const _: () = {
    assert!(size_of::<Options>() == 48 + 2 * MAX_CPUS);
    assert!(offset_of!(Options, domain_of) == 48);
    assert!(size_of::<CpuSlot>() == 128);
    assert!(offset_of!(CpuSlot, worst_wait_tid) == 96);
    assert!(size_of::<Domain>() == 256);
    assert!(size_of::<Group>() == 96);
    assert!(size_of::<Places>() == 8);
    assert!(size_of::<Sharer>() == 64);
    assert!(offset_of!(Sharer, served) == 40);
    assert!(offset_of!(Sharer, cpu) == 58);
    assert!(offset_of!(Sharer, born) == 60);
    assert!(size_of::<ExitRecord>() == 1168);
    assert!(size_of::<TenantSetting>() == 8);
    assert!(size_of::<ServerSetting>() == 56);
    assert!(size_of::<ServerSlot>() == 192);
    assert!(size_of::<ThreadSetting>() == 24);
};
