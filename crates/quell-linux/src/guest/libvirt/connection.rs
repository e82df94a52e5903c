//! A connection to libvirt and a domain of it, freed when dropped.

use super::api::{Api, Connect, Domain, LIST_ACTIVE, UUID_BYTES};
use crate::guest::GuestError;
use std::ffi::{CStr, CString, c_char};
use std::ptr::{NonNull, null, null_mut};

/// libvirt is asked whether it still is there every so many seconds, and is not after so many times without an answer.
const ALIVE_S: i32 = 5;
const ALIVE_TIMES: u32 = 2;

/// A connection.
pub(super) struct Connection {
    pub api: &'static Api,
    raw: NonNull<Connect>,
}

// SAFETY: libvirt's connections may be used from any thread (libvirt's documentation, "thread safety", since 0.6.0).
unsafe impl Send for Connection {}

/// A domain, and the connection that it is of.
pub(super) struct Handle {
    pub connection: Connection,
    raw: NonNull<Domain>,
}

// SAFETY: as for connections.
unsafe impl Send for Handle {}

impl Connection {
    /// Connects; may wait for libvirt without end.
    pub fn open(uri: &str) -> Result<Connection, GuestError> {
        let api = Api::get().map_err(|why| GuestError::Libvirt { call: "open", why })?;
        let uri = text(uri)?;
        // SAFETY: the text outlives the call. Whoever got the API has registered the event loop.
        let raw = unsafe { (api.libvirt.virConnectOpen)(uri.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| failed(api, "virConnectOpen"))?;
        let connection = Connection { api, raw };
        // A driver that knows nothing of it is within this process.
        // SAFETY: the connection is open.
        unsafe { (api.libvirt.virConnectSetKeepAlive)(raw.as_ptr(), ALIVE_S, ALIVE_TIMES) };
        Ok(connection)
    }

    /// Whether libvirt still is at its other end.
    pub fn is_alive(&self) -> bool {
        // SAFETY: the connection is open.
        unsafe { (self.api.libvirt.virConnectIsAlive)(self.as_ptr()) == 1 }
    }

    pub fn as_ptr(&self) -> *mut Connect {
        self.raw.as_ptr()
    }

    /// The UUIDs of the domains that run.
    pub fn running(&self) -> Result<Vec<String>, GuestError> {
        let mut all: *mut *mut Domain = null_mut();
        // SAFETY: the connection is open; the array is written to `all` and is ours, with all domains in it.
        let count = unsafe {
            (self.api.libvirt.virConnectListAllDomains)(self.as_ptr(), &raw mut all, LIST_ACTIVE)
        };
        let count =
            usize::try_from(count).map_err(|_| failed(self.api, "virConnectListAllDomains"))?;
        let mut uuids = Vec::new();
        for at in 0..count {
            // SAFETY: the array has so many domains; each is freed once, after its last use.
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
        // SAFETY: it is open, and used no more. Who is registered for its events is freed by libvirt.
        unsafe { (self.api.libvirt.virConnectClose)(self.as_ptr()) };
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it was looked up and is used no more; its connection is closed after it.
        unsafe { (self.connection.api.libvirt.virDomainFree)(self.as_ptr()) };
    }
}

/// A domain's UUID.
///
/// # Safety
/// The domain is one of libvirt's, not freed.
pub(super) unsafe fn uuid_of(api: &Api, domain: *mut Domain) -> Option<String> {
    let mut text: [c_char; UUID_BYTES] = [0; UUID_BYTES];
    // SAFETY: the domain is good, as the caller says; at most UUID_BYTES are written, with a NUL at the end.
    unsafe {
        let got = (api.libvirt.virDomainGetUUIDString)(domain, text.as_mut_ptr());
        (got == 0).then(|| CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned())
    }
}

/// What libvirt said of a call in this thread.
pub(super) fn failed(api: &Api, call: &'static str) -> GuestError {
    let (_, why) = api.last_error();
    GuestError::Libvirt { call, why }
}

/// A text for libvirt.
pub(super) fn text(text: &str) -> Result<CString, GuestError> {
    CString::new(text).map_err(|error| GuestError::Libvirt {
        call: "pass a text",
        why: error.to_string(),
    })
}

/// No domain: of all.
pub(super) const ALL: *mut Domain = null::<Domain>().cast_mut();
