//! libvirt's C API (libvirt 5.8 and newer), as far as it is needed, from libraries that are opened when they are first needed: whoever has no libvirt
//! needs none, neither to build Quell nor to run it.
//!
//! The declarations are ours, after `libvirt-domain.h`, `libvirt-host.h`, `libvirt-event.h`, `libvirt-qemu.h` and `virterror.h`, whose ABI
//! libvirt keeps since 0.1. All of it is called from any thread; what went wrong last is kept by libvirt for each thread by itself.

use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The library that everything but QEMU's guest agent is in.
const LIBVIRT: &str = "libvirt.so.0";
/// The library with QEMU's guest agent.
const LIBVIRT_QEMU: &str = "libvirt-qemu.so.0";

/// `VIR_DOMAIN_AFFECT_LIVE`: what runs, not what its definition says.
pub(super) const LIVE: c_uint = 1;
/// `VIR_CONNECT_LIST_DOMAINS_ACTIVE`.
pub(super) const LIST_ACTIVE: c_uint = 1;
/// `VIR_DOMAIN_VCPU_LIVE`, with the greatest number there can be: `VIR_DOMAIN_VCPU_MAXIMUM`.
pub(super) const VCPUS_MAXIMUM: c_uint = 1 | 4;
/// `VIR_DOMAIN_EVENT_ID_LIFECYCLE`.
pub(super) const EVENT_LIFECYCLE: c_int = 0;
/// `VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE`.
pub(super) const EVENT_AGENT: c_int = 18;
/// `VIR_DOMAIN_EVENT_STARTED`.
pub(super) const STARTED: c_int = 2;
/// `VIR_DOMAIN_EVENT_STOPPED`.
pub(super) const STOPPED: c_int = 5;
/// `VIR_CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_CONNECTED`.
pub(super) const AGENT_CONNECTED: c_int = 1;
/// `VIR_UUID_STRING_BUFLEN`.
pub(super) const UUID_BYTES: usize = 37;
/// `VIR_ERR_AGENT_UNRESPONSIVE`: the guest agent is not there, or did not answer.
pub(super) const ERROR_UNRESPONSIVE: c_int = 86;
/// `VIR_ERR_INTERNAL_ERROR`: among others the guest agent's refusals, before libvirt 7.0.
pub(super) const ERROR_INTERNAL: c_int = 1;
/// `VIR_ERR_AGENT_COMMAND_FAILED` (libvirt 7.0): the guest agent refused.
pub(super) const ERROR_REFUSED: c_int = 113;
/// `VIR_ERR_AGENT_COMMAND_TIMEOUT` (libvirt 7.0): it did not answer this question.
pub(super) const ERROR_TIMEOUT: c_int = 112;

/// A connection, seen from here.
#[repr(C)]
pub(super) struct Connect {
    _opaque: [u8; 0],
}

/// A domain, seen from here.
#[repr(C)]
pub(super) struct Domain {
    _opaque: [u8; 0],
}

/// `virDomainIOThreadInfo` (libvirt 1.2.14).
#[repr(C)]
pub(super) struct IoThreadInfo {
    pub id: c_uint,
    pub cpumap: *mut u8,
    pub cpumaplen: c_int,
}

/// `virConnectDomainEventCallback`.
pub(super) type Lifecycle =
    unsafe extern "C" fn(*mut Connect, *mut Domain, c_int, c_int, *mut c_void) -> c_int;
/// `virConnectDomainEventAgentLifecycleCallback`.
pub(super) type AgentLifecycle =
    unsafe extern "C" fn(*mut Connect, *mut Domain, c_int, c_int, *mut c_void);
/// `virFreeCallback`.
pub(super) type Free = unsafe extern "C" fn(*mut c_void);

/// `virVcpuInfo`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct VcpuInfo {
    pub number: c_uint,
    pub state: c_int,
    pub cpu_time_ns: u64,
    pub cpu: c_int,
}

macro_rules! functions {
    ($(#[$doc:meta])* struct $name:ident { $($function:ident: fn($($argument:ty),*) -> $result:ty,)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "libvirt's names")]
        pub(super) struct $name {
            $(pub $function: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $name {
            fn from(library: &Library) -> Result<$name, libloading::Error> {
                Ok($name { $($function: function(library, concat!(stringify!($function), "\0"))?,)* })
            }
        }
    };
}

/// The function of that name, `F` being its type.
fn function<F: Copy + 'static>(library: &Library, name: &str) -> Result<F, libloading::Error> {
    // SAFETY: the function of that name has had this type since the version of libvirt that brought it (see the declarations below); the library is
    // never closed, so the pointer stays good.
    unsafe { library.get::<F>(name.as_bytes()) }.map(|it| *it)
}

functions! {
    /// What libvirt.so.0 has. Pointers that are given must be of this API and not be freed; the result of what begins with `virDomainLookup` or
    /// `virConnectOpen` is the caller's, to be freed once.
    struct Libvirt {
        virInitialize: fn() -> c_int,
        virSetErrorFunc: fn(*mut c_void, Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>) -> (),
        virGetLastErrorMessage: fn() -> *const c_char,
        virGetLastErrorCode: fn() -> c_int,
        virEventRegisterDefaultImpl: fn() -> c_int,
        virEventRunDefaultImpl: fn() -> c_int,
        virConnectOpen: fn(*const c_char) -> *mut Connect,
        virConnectClose: fn(*mut Connect) -> c_int,
        virConnectIsAlive: fn(*mut Connect) -> c_int,
        virConnectSetKeepAlive: fn(*mut Connect, c_int, c_uint) -> c_int,
        virConnectListAllDomains: fn(*mut Connect, *mut *mut *mut Domain, c_uint) -> c_int,
        virConnectDomainEventRegisterAny: fn(*mut Connect, *mut Domain, c_int, Option<Lifecycle>, *mut c_void, Option<Free>) -> c_int,
        virDomainLookupByUUIDString: fn(*mut Connect, *const c_char) -> *mut Domain,
        virDomainGetUUIDString: fn(*mut Domain, *mut c_char) -> c_int,
        virDomainFree: fn(*mut Domain) -> c_int,
        virDomainGetVcpus: fn(*mut Domain, *mut VcpuInfo, c_int, *mut u8, c_int) -> c_int,
        virDomainGetVcpusFlags: fn(*mut Domain, c_uint) -> c_int,
        virDomainGetVcpuPinInfo: fn(*mut Domain, c_int, *mut u8, c_int, c_uint) -> c_int,
        virDomainPinVcpuFlags: fn(*mut Domain, c_uint, *mut u8, c_int, c_uint) -> c_int,
        virDomainGetEmulatorPinInfo: fn(*mut Domain, *mut u8, c_int, c_uint) -> c_int,
        virDomainPinEmulator: fn(*mut Domain, *mut u8, c_int, c_uint) -> c_int,
        virDomainGetIOThreadInfo: fn(*mut Domain, *mut *mut *mut IoThreadInfo, c_uint) -> c_int,
        virDomainIOThreadInfoFree: fn(*mut IoThreadInfo) -> (),
        virDomainPinIOThread: fn(*mut Domain, c_uint, *mut u8, c_int, c_uint) -> c_int,
    }
}

functions! {
    /// What libvirt-qemu.so.0 has.
    struct Qemu {
        virDomainQemuAgentCommand: fn(*mut Domain, *const c_char, c_int, c_uint) -> *mut c_char,
    }
}

/// Both libraries.
pub(super) struct Api {
    pub libvirt: Libvirt,
    pub qemu: Qemu,
}

impl Api {
    /// Opens the libraries, once; says why that is not possible.
    ///
    /// A host that gets libvirt later has it after the next start: nothing is tried twice.
    pub fn get() -> Result<&'static Api, String> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        let api = API.get_or_init(|| Api::load().map_err(|error| format!("no libvirt: {error}")));
        api.as_ref().map_err(String::clone)
    }

    fn load() -> Result<Api, libloading::Error> {
        // SAFETY: these are libvirt's, whose initializers only register what their own functions need.
        let [libvirt, qemu] = unsafe { [Library::new(LIBVIRT)?, Library::new(LIBVIRT_QEMU)?] };
        let api = Api {
            libvirt: Libvirt::from(&libvirt)?,
            qemu: Qemu::from(&qemu)?,
        };
        // Never closed: threads of ours may be in them to the end.
        std::mem::forget((libvirt, qemu));
        // SAFETY: the first call, before all others; it may be called again. The handler stays for ever, and uses nothing that it is given.
        // The event loop has to be there before the first connection, and is, as this is the only place where connections come from.
        unsafe {
            (api.libvirt.virInitialize)();
            (api.libvirt.virSetErrorFunc)(std::ptr::null_mut(), Some(silence));
            (api.libvirt.virEventRegisterDefaultImpl)();
        }
        let run = api.libvirt.virEventRunDefaultImpl;
        let events = std::thread::Builder::new().name("quell-libvirt".into());
        // Without it no connection is noticed to be dead, and events do not come; all else works.
        let _ = events.spawn(move || {
            loop {
                // SAFETY: the event loop was registered; it is this thread's alone.
                if unsafe { run() } < 0 {
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
            }
        });
        Ok(api)
    }

    /// What went wrong last in this thread, and its number.
    pub fn last_error(&self) -> (c_int, String) {
        // SAFETY: no memory is passed. The text is this thread's until its next call of libvirt's.
        let (code, text) = unsafe {
            let text = (self.libvirt.virGetLastErrorMessage)();
            let code = (self.libvirt.virGetLastErrorCode)();
            let known = (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy());
            (code, known.map_or("unknown".to_string(), Into::into))
        };
        (code, super::super::agent::shortened(&text))
    }
}

/// Errors are asked for where they happen; libvirt is not to print them.
unsafe extern "C" fn silence(_: *mut c_void, _: *mut c_void) {}
