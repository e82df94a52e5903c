//! The structures that the loader shares with the BPF programs: `bpf/layout.h`, field by field.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

pub const MAX_CPUS: usize = 1024;
pub const MAX_LLCS: usize = 256;
pub const LLC_CPUS: usize = 64;
pub const MAX_SERVERS: usize = 1024;
pub const MAX_SHARE_SLOTS: usize = 16384;
pub const OFFLINE: u16 = 0x8000;
pub const NO_LLC: u16 = 0x7fff;

/// `struct options`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Options {
    pub margin_ns: u64,
    pub stretch: u32,
    pub causal: u32,
    pub asymmetry: u32,
    pub share: u32,
    pub nr_llcs: u32,
    pub nr_cpus: u32,
    pub observe: u32,
    pub requests: u32,
    pub criticality: u32,
    pub unused: u32,
    pub llc_of: [u16; MAX_CPUS],
}

/// `struct cpu_ctx`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CpuCtx {
    pub curr_deadline: u64,
    pub deadline_fixed_until_ns: u64,
    pub deadline_pace: u64,
    pub curr_since_ns: u64,
    pub nr_pinned: u32,
    pub offline: u8,
    pub curr_mobility: u8,
    pub migrate_state: u8,
    pub llc_visited: u8,
    pub runs: u64,
    pub wakeups_idle: u64,
    pub wakeups_preempting: u64,
    pub wakeups_queued: u64,
    pub kept: u64,
    pub wait_ns: u64,
    pub worst_wait_ns: u64,
    pub worst_wait_tid: u32,
    pub curr_tid: u32,
    pub late: u64,
    pub rescued: u64,
    pub unused: u64,
}

/// `struct share_slot`: the scheduler and its loader both write it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ShareSlot {
    pub tid: AtomicU32,
    pub weight: AtomicU32,
    pub group_id: AtomicU64,
    pub used_ns: AtomicU64,
    pub wanted_ns: AtomicU64,
    pub since_ns: AtomicU64,
    pub served_until_ns: AtomicU64,
    pub rate: AtomicU32,
    pub wants: AtomicU32,
    pub nr_cpus_allowed: AtomicU16,
    pub pinned_cpu_plus1: AtomicU16,
    pub is_new: AtomicU32,
}

/// `struct share_slot_hints`: the scheduler and its loader both write it.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ShareSlotHints {
    pub used_end: AtomicU32,
    pub next_free: AtomicU32,
}

/// `struct llc_ctx`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct LlcCtx {
    pub vclock: u64,
    pub lag_owed: i64,
    pub weight_sum: u64,
    pub starved_dispatched_at_ns: u64,
    pub migrate_scan_at_ns: u64,
    pub migrate_timer_armed: u64,
    pub preempt_timer_at_ns: u64,
    pub unthrottle_timer_at_ns: u64,
    pub starved_scan_at_ns: u64,
    pub resorted_at_ns: u64,
    pub nr_queued: u32,
    pub nr_starved: u32,
    pub nr_pinned: u32,
    pub nr_throttled: u32,
    pub nr_online: u32,
    pub nr_cpus: u32,
    pub cpus: [u16; LLC_CPUS],
    pub padding: [u64; 3],
}

/// `struct group` (groups.bpf.h).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Group {
    pub parent_id: u64,
    pub weight: u32,
    pub counted_weight: u32,
    pub active_weight: u64,
    pub share_weight: u64,
    pub share_weight_at_ns: u64,
    /// `struct bandwidth`: `quota_ns`, `period_ns`, `burst_ns`, `period_start_ns`, `runtime_ns`,
    /// `next_group_id`.
    pub bw: [u64; 6],
    pub bw_generation: u32,
    pub bw_running: i32,
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
    pub period_ns: u64,
    pub budget_lo_ns: u64,
    pub budget_hi_ns: u64,
    pub rel_vdeadline_ns: u64,
    pub chunk_ns: u64,
    pub hi_crit: u32,
    pub hi_periods: u32,
}

/// `struct server` (policy/server.h).
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Server {
    pub terms: ServerTerms,
    pub period_start_ns: u64,
    pub budget_lo_since_ns: u64,
    pub deadline_ns: u64,
    pub vdeadline_ns: u64,
    pub runtime_max_ns: u64,
    pub used_ns: u64,
    pub carried_ns: u64,
    pub hi_until_ns: u64,
}

/// `struct server_setting`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ServerSetting {
    pub server: u32,
    pub cpu: u32,
    pub terms: ServerTerms,
}

/// `struct server_ctx`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ServerCtx {
    pub cur: Server,
    pub next_terms: ServerTerms,
    pub missed: u64,
    pub terms_seq: u32,
    pub terms_seq_applied: u32,
    pub cpu: u32,
    pub nr_ready: u32,
    pub wakeup_pending: u32,
    pub ended: u32,
}

/// `struct tenant_setting`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TenantSetting {
    pub tenant: u32,
    pub weight: u32,
}

impl ServerCtx {
    /// What the server got.
    pub fn stats(&self) -> crate::ServerStats {
        crate::ServerStats {
            used_ns: self.cur.used_ns,
            missed: self.missed,
        }
    }
}

/// A sum of weights (fair.h) in the scale of cgroup v2.
pub fn weight(raw: u64) -> f64 {
    // As signed: a sum below 0, which would be an error, shows as such.
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
unsafe impl Plain for CpuCtx {}
// SAFETY: as above.
unsafe impl Plain for LlcCtx {}
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
unsafe impl Plain for ServerCtx {}

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

// The same as layout.h asserts.
const _: () = {
    assert!(size_of::<Options>() == 48 + 2 * MAX_CPUS);
    assert!(offset_of!(Options, llc_of) == 48);
    assert!(size_of::<CpuCtx>() == 128);
    assert!(offset_of!(CpuCtx, worst_wait_tid) == 96);
    assert!(size_of::<LlcCtx>() == 256);
    assert!(size_of::<Group>() == 96);
    assert!(size_of::<ShareSlotHints>() == 8);
    assert!(size_of::<ShareSlot>() == 64);
    assert!(offset_of!(ShareSlot, served_until_ns) == 40);
    assert!(offset_of!(ShareSlot, pinned_cpu_plus1) == 58);
    assert!(offset_of!(ShareSlot, is_new) == 60);
    assert!(size_of::<ExitRecord>() == 1168);
    assert!(size_of::<TenantSetting>() == 8);
    assert!(size_of::<ServerSetting>() == 56);
    assert!(size_of::<ServerCtx>() == 192);
    assert!(size_of::<ThreadSetting>() == 24);
};
