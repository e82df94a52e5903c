//! A connection to libvirt and a domain of it, freed when dropped.

use super::api::{Api, Connect, Domain, LIST_ACTIVE, UUID_BYTES};
use crate::guest::GuestError;
use std::ffi::{CStr, CString, c_char};
use std::ptr::{NonNull, null, null_mut};

/// The interval in seconds of libvirt's keep-alive questions; a connection is dead after [`ALIVE_TIMES`] of
/// them without an answer.
const ALIVE_S: i32 = 5;
const ALIVE_TIMES: u32 = 2;

/// An open connection to libvirt.
pub(super) struct Connection {
    pub api: &'static Api,
    raw: NonNull<Connect>,
}

// SAFETY: connections of libvirt may be used from any thread (libvirt's documentation, "thread safety", since
// 0.6.0).
unsafe impl Send for Connection {}

/// A domain, and the connection that it belongs to.
pub(super) struct Handle {
    pub connection: Connection,
    raw: NonNull<Domain>,
}

// SAFETY: as for connections.
unsafe impl Send for Handle {}

impl Connection {
    /// Connects to libvirt; may wait for libvirt without a bound.
    ///
    /// # Errors
    /// The call fails if libvirt's libraries are not available, or libvirt refuses the connection
    /// ([`GuestError::Libvirt`]).
    pub fn open(uri: &str) -> Result<Connection, GuestError> {
        let api = Api::get().map_err(|why| GuestError::Libvirt { call: "open", why })?;
        let uri = text(uri)?;
        // SAFETY: the text outlives the call. The event loop is registered before the API is given out.
        let raw = unsafe { (api.libvirt.virConnectOpen)(uri.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| failed(api, "virConnectOpen"))?;
        let connection = Connection { api, raw };
        // A driver without keep-alive runs within this process.
        // SAFETY: the connection is open.
        unsafe { (api.libvirt.virConnectSetKeepAlive)(raw.as_ptr(), ALIVE_S, ALIVE_TIMES) };
        Ok(connection)
    }

    /// Whether libvirt still answers at the other end.
    pub fn is_alive(&self) -> bool {
        // SAFETY: the connection is open.
        unsafe { (self.api.libvirt.virConnectIsAlive)(self.as_ptr()) == 1 }
    }

    pub fn as_ptr(&self) -> *mut Connect {
        self.raw.as_ptr()
    }

    /// The UUIDs of the running domains.
    ///
    /// # Errors
    /// The call fails if libvirt does not list them ([`GuestError::Libvirt`]).
    pub fn running(&self) -> Result<Vec<String>, GuestError> {
        let mut all: *mut *mut Domain = null_mut();
        // SAFETY: the connection is open; the array is written to `all` and belongs to the caller, with all
        // domains in it.
        let count = unsafe {
            (self.api.libvirt.virConnectListAllDomains)(self.as_ptr(), &raw mut all, LIST_ACTIVE)
        };
        let count =
            usize::try_from(count).map_err(|_| failed(self.api, "virConnectListAllDomains"))?;
        let mut uuids = Vec::new();
        for at in 0..count {
            // SAFETY: the array has `count` domains; each is freed once, after its last use.
            unsafe {
                let domain = *all.add(at);
                uuids.extend(uuid_of(self.api, domain));
                (self.api.libvirt.virDomainFree)(domain);
            }
        }
        // SAFETY: the array was allocated by libvirt for the caller, with malloc(3).
        unsafe { libc::free(all.cast()) };
        Ok(uuids)
    }

    /// The domain of that UUID, which takes the connection.
    ///
    /// # Errors
    /// The call fails if the UUID holds a NUL or libvirt has no such domain ([`GuestError::Libvirt`]).
    pub fn domain(self, uuid: &str) -> Result<Handle, GuestError> {
        let uuid = text(uuid)?;
        // SAFETY: the connection is open, and the text outlives the call.
        let raw =
            unsafe { (self.api.libvirt.virDomainLookupByUUIDString)(self.as_ptr(), uuid.as_ptr()) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Handle {
                connection: self,
                raw,
            }),
            None => Err(failed(self.api, "virDomainLookupByUUIDString")),
        }
    }
}

impl Handle {
    pub fn as_ptr(&self) -> *mut Domain {
        self.raw.as_ptr()
    }

    pub fn failed(&self, call: &'static str) -> GuestError {
        failed(self.connection.api, call)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the connection is open, and is not used afterwards. libvirt frees the registrations for its
        // events.
        unsafe { (self.api.libvirt.virConnectClose)(self.as_ptr()) };
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the domain was looked up and is not used afterwards; its connection is closed after it.
        unsafe { (self.connection.api.libvirt.virDomainFree)(self.as_ptr()) };
    }
}

/// The UUID of a domain.
///
/// # Safety
/// The domain must be a domain of libvirt that was not freed.
pub(super) unsafe fn uuid_of(api: &Api, domain: *mut Domain) -> Option<String> {
    let mut text: [c_char; UUID_BYTES] = [0; UUID_BYTES];
    // SAFETY: the domain is valid, as the caller guarantees; at most UUID_BYTES are written, with a NUL at
    // the end.
    unsafe {
        let got = (api.libvirt.virDomainGetUUIDString)(domain, text.as_mut_ptr());
        (got == 0).then(|| CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned())
    }
}

/// The error of libvirt's last call in this thread, as a [`GuestError`].
pub(super) fn failed(api: &Api, call: &'static str) -> GuestError {
    let (_, why) = api.last_error();
    GuestError::Libvirt { call, why }
}

/// A text in the form that libvirt takes.
pub(super) fn text(text: &str) -> Result<CString, GuestError> {
    CString::new(text).map_err(|error| GuestError::Libvirt {
        call: "pass a text",
        why: error.to_string(),
    })
}

/// The null domain, which stands for all domains.
pub(super) const ALL: *mut Domain = null::<Domain>().cast_mut();
