//! libvirt's C API (libvirt 5.8 and newer), as far as it is needed, from libraries that are opened when they
//! are first needed: a host without libvirt needs no libvirt, neither to build Quell nor to run it.
//!
//! The declarations are written here after `libvirt-domain.h`, `libvirt-host.h`, `libvirt-event.h`,
//! `libvirt-qemu.h` and `virterror.h`, whose ABI libvirt keeps since 0.1. All functions may be called from
//! any thread; libvirt keeps the last error for each thread separately.

use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The library of everything but QEMU's guest agent.
const LIBVIRT: &str = "libvirt.so.0";
/// The library with QEMU's guest agent.
const LIBVIRT_QEMU: &str = "libvirt-qemu.so.0";

/// `VIR_DOMAIN_AFFECT_LIVE`: affects the running domain, not its definition.
pub(super) const LIVE: c_uint = 1;
/// The flag `VIR_CONNECT_LIST_DOMAINS_ACTIVE`.
pub(super) const LIST_ACTIVE: c_uint = 1;
/// `VIR_DOMAIN_VCPU_LIVE | VIR_DOMAIN_VCPU_MAXIMUM`: the greatest number of virtual CPUs that the running
/// domain can have.
pub(super) const VCPUS_MAXIMUM: c_uint = 1 | 4;
/// The event id `VIR_DOMAIN_EVENT_ID_LIFECYCLE`.
pub(super) const EVENT_LIFECYCLE: c_int = 0;
/// The event id `VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE`.
pub(super) const EVENT_AGENT: c_int = 18;
/// The lifecycle event `VIR_DOMAIN_EVENT_STARTED`.
pub(super) const STARTED: c_int = 2;
/// The lifecycle event `VIR_DOMAIN_EVENT_STOPPED`.
pub(super) const STOPPED: c_int = 5;
/// The agent state `VIR_CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_CONNECTED`.
pub(super) const AGENT_CONNECTED: c_int = 1;
/// The size of a UUID's text, `VIR_UUID_STRING_BUFLEN`.
pub(super) const UUID_BYTES: usize = 37;
/// `VIR_ERR_AGENT_UNRESPONSIVE`: the guest agent does not exist, or did not answer.
pub(super) const ERROR_UNRESPONSIVE: c_int = 86;
/// `VIR_ERR_INTERNAL_ERROR`: among others the guest agent's refusals, before libvirt 7.0.
pub(super) const ERROR_INTERNAL: c_int = 1;
/// `VIR_ERR_AGENT_COMMAND_FAILED` (libvirt 7.0): the guest agent refused.
pub(super) const ERROR_REFUSED: c_int = 113;
/// `VIR_ERR_AGENT_COMMAND_TIMEOUT` (libvirt 7.0): the guest agent did not answer this question.
pub(super) const ERROR_TIMEOUT: c_int = 112;

/// An opaque connection, `virConnect`.
#[repr(C)]
pub(super) struct Connect {
    _opaque: [u8; 0],
}

/// An opaque domain, `virDomain`.
#[repr(C)]
pub(super) struct Domain {
    _opaque: [u8; 0],
}

/// The structure `virDomainIOThreadInfo` (libvirt 1.2.14).
#[repr(C)]
pub(super) struct IoThreadInfo {
    pub id: c_uint,
    pub cpumap: *mut u8,
    pub cpumaplen: c_int,
}

/// The callback type `virConnectDomainEventCallback`.
pub(super) type Lifecycle =
    unsafe extern "C" fn(*mut Connect, *mut Domain, c_int, c_int, *mut c_void) -> c_int;
/// The callback type `virConnectDomainEventAgentLifecycleCallback`.
pub(super) type AgentLifecycle =
    unsafe extern "C" fn(*mut Connect, *mut Domain, c_int, c_int, *mut c_void);
/// The callback type `virFreeCallback`.
pub(super) type Free = unsafe extern "C" fn(*mut c_void);

/// The structure `virVcpuInfo`.
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
    // SAFETY: the function of that name has had this type since the version of libvirt that introduced it
    // (see the declarations below); the library is never closed, so the pointer stays valid.
    unsafe { library.get::<F>(name.as_bytes()) }.map(|it| *it)
}

functions! {
    /// The functions of libvirt.so.0. Pointers passed to them must come from this API and must not have been
    /// freed; a pointer that a function returns whose name begins with `virDomainLookup` or `virConnectOpen`
    /// belongs to the caller, to be freed once.
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
    /// The functions of libvirt-qemu.so.0.
    struct Qemu {
        virDomainQemuAgentCommand: fn(*mut Domain, *const c_char, c_int, c_uint) -> *mut c_char,
    }
}

/// The functions of both libraries.
pub(super) struct Api {
    pub libvirt: Libvirt,
    pub qemu: Qemu,
}

impl Api {
    /// Opens the libraries, once.
    ///
    /// A host on which libvirt is installed later needs a restart of this process: no attempt is repeated.
    ///
    /// # Errors
    /// The call fails, with a text that says why, if a library or a function of it is missing.
    pub fn get() -> Result<&'static Api, String> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        let api = API.get_or_init(|| Api::load().map_err(|error| format!("no libvirt: {error}")));
        api.as_ref().map_err(String::clone)
    }

    fn load() -> Result<Api, libloading::Error> {
        // SAFETY: these are libvirt's libraries, whose initializers only register what their own functions
        // need.
        let [libvirt, qemu] = unsafe { [Library::new(LIBVIRT)?, Library::new(LIBVIRT_QEMU)?] };
        let api = Api {
            libvirt: Libvirt::from(&libvirt)?,
            qemu: Qemu::from(&qemu)?,
        };
        // Never closed: threads of this process may be in the libraries to the end.
        std::mem::forget((libvirt, qemu));
        // SAFETY: this is the first call, before all others; it may be repeated. The handler stays for ever,
        // and uses none of its arguments. The event loop has to exist before the first connection, and does,
        // as connections come from this place only.
        unsafe {
            (api.libvirt.virInitialize)();
            (api.libvirt.virSetErrorFunc)(std::ptr::null_mut(), Some(silence));
            (api.libvirt.virEventRegisterDefaultImpl)();
        }
        let run = api.libvirt.virEventRunDefaultImpl;
        let events = std::thread::Builder::new().name("quell-libvirt".into());
        // Without this thread no dead connection is noticed, and events do not come; everything else works.
        let _ = events.spawn(move || {
            loop {
                // SAFETY: the event loop was registered; only this thread runs it.
                if unsafe { run() } < 0 {
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
            }
        });
        Ok(api)
    }

    /// The last error of libvirt in this thread: its number and text.
    pub fn last_error(&self) -> (c_int, String) {
        // SAFETY: no memory is passed. The text is this thread's until its next call of libvirt.
        let (code, text) = unsafe {
            let text = (self.libvirt.virGetLastErrorMessage)();
            let code = (self.libvirt.virGetLastErrorCode)();
            let known = (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy());
            (code, known.map_or("unknown".to_string(), Into::into))
        };
        (code, super::super::agent::shortened(&text))
    }
}

/// An error handler that does nothing: errors are asked for where they happen; libvirt is not to print them.
unsafe extern "C" fn silence(_: *mut c_void, _: *mut c_void) {}
