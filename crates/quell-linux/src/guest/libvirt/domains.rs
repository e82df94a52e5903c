//! The domains that libvirt runs, as it reports them: asked once for each connection, then updated by its
//! events.

use super::api::{
    AGENT_CONNECTED, AgentLifecycle, Api, Connect, Domain, EVENT_AGENT, EVENT_LIFECYCLE, Lifecycle,
    STARTED, STOPPED,
};
use super::connection::{ALL, Connection, failed, uuid_of};
use crate::guest::GuestError;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The pause between tries to connect, and between checks whether a connection is alive.
const PAUSE: Duration = Duration::from_secs(1);
/// The time after which a libvirt that does not answer counts as absent.
const CONNECTING: Duration = Duration::from_secs(5);

/// The domains that a libvirt runs. This is a handle: copies refer to the same domains.
#[derive(Debug, Clone)]
pub struct Domains(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    uri: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    reach: Reach,
    /// The running domains by UUID, and the number of times the guest agent of each has come.
    running: BTreeMap<String, u64>,
}

#[derive(Debug)]
enum Reach {
    /// No component has asked yet.
    Unasked,
    Connecting(Instant),
    Here,
    Away(String),
}

/// The state of a domain as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing is known yet.
    NotYet,
    /// libvirt cannot be asked.
    Away(String),
    /// libvirt runs no such domain.
    Unknown,
    /// The domain runs.
    Running {
        /// The number of times its guest agent has come since the domain is known.
        agents: u64,
    },
}

impl Domains {
    /// The domains of the libvirt at `uri`, which is asked once a domain is looked for.
    pub fn of(uri: String) -> Domains {
        let state = State {
            reach: Reach::Unasked,
            running: BTreeMap::new(),
        };
        Domains(Arc::new(Shared {
            uri,
            state: Mutex::new(state),
        }))
    }

    /// The URI of that libvirt.
    pub fn uri(&self) -> &str {
        &self.0.uri
    }

    /// The present state of a domain, without waiting.
    pub fn find(&self, uuid: &str) -> Found {
        let mut state = self.0.state();
        if let Reach::Unasked = state.reach {
            let shared = Arc::downgrade(&self.0);
            let thread = std::thread::Builder::new().name("quell-domains".into());
            state.reach = match thread.spawn(move || follow(&shared)) {
                Ok(_) => Reach::Connecting(Instant::now()),
                Err(error) => Reach::Away(error.to_string()),
            };
        }
        match &state.reach {
            Reach::Connecting(since) if since.elapsed() > CONNECTING => {
                Found::Away(format!("libvirt at {} does not answer", self.0.uri))
            }
            Reach::Unasked | Reach::Connecting(_) => Found::NotYet,
            Reach::Away(why) => Found::Away(why.clone()),
            Reach::Here => match state.running.get(uuid) {
                Some(agents) => Found::Running { agents: *agents },
                None => Found::Unknown,
            },
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects, again and again, and follows the events, until no handle is left.
fn follow(shared: &Weak<Shared>) {
    while let Some(here) = shared.upgrade() {
        let why = match connect(&here) {
            Ok(connection) => {
                drop(here);
                while shared.strong_count() > 0 && connection.is_alive() {
                    std::thread::sleep(PAUSE / 4);
                }
                "the connection to libvirt broke".to_string()
            }
            Err(error) => error.to_string(),
        };
        let Some(here) = shared.upgrade() else {
            return;
        };
        {
            let mut state = here.state();
            state.reach = Reach::Away(why);
            state.running.clear();
        }
        drop(here);
        std::thread::sleep(PAUSE);
    }
}

/// A connection whose events go to `shared`, which knows all running domains.
fn connect(shared: &Arc<Shared>) -> Result<Connection, GuestError> {
    let connection = Connection::open(&shared.uri)?;
    // The registration comes first, so that no event is missed in between.
    register(&connection, shared)?;
    let running = connection.running()?;
    let mut state = shared.state();
    for uuid in running {
        state.running.entry(uuid).or_default();
    }
    state.reach = Reach::Here;
    drop(state);
    Ok(connection)
}

fn register(connection: &Connection, shared: &Arc<Shared>) -> Result<(), GuestError> {
    let api = connection.api;
    // SAFETY: libvirt takes all callbacks as functions of one type, and calls each by the type of its event:
    // these are the types of these events.
    let agent = unsafe { std::mem::transmute::<AgentLifecycle, Lifecycle>(agent) };
    for (event, call) in [
        (EVENT_LIFECYCLE, lifecycle as Lifecycle),
        (EVENT_AGENT, agent),
    ] {
        let opaque = Weak::into_raw(Arc::downgrade(shared)).cast_mut().cast();
        // SAFETY: the connection is open. The pointer is a weak count of its own, which libvirt passes to
        // `forget` once it makes no more calls.
        let registered = unsafe {
            let register = api.libvirt.virConnectDomainEventRegisterAny;
            register(
                connection.as_ptr(),
                ALL,
                event,
                Some(call),
                opaque,
                Some(forget),
            )
        };
        if registered < 0 {
            let error = failed(api, "virConnectDomainEventRegisterAny");
            // SAFETY: libvirt did not take the pointer.
            unsafe { forget(opaque) };
            return Err(error);
        }
    }
    Ok(())
}

/// Takes the event that a domain starts, stops, or changes in another way.
unsafe extern "C" fn lifecycle(
    _: *mut Connect,
    domain: *mut Domain,
    event: c_int,
    _detail: c_int,
    opaque: *mut c_void,
) -> c_int {
    // SAFETY: libvirt calls this with the pointer that was registered, and a domain that is valid for the
    // call.
    unsafe {
        happened(domain, opaque, |running, uuid| match event {
            STARTED => drop(running.entry(uuid).or_default()),
            STOPPED => drop(running.remove(&uuid)),
            _ => {}
        });
    }
    0
}

/// Takes the event that a guest agent comes or goes.
unsafe extern "C" fn agent(
    _: *mut Connect,
    domain: *mut Domain,
    state: c_int,
    _reason: c_int,
    opaque: *mut c_void,
) {
    // SAFETY: as above.
    unsafe {
        happened(domain, opaque, |running, uuid| {
            *running.entry(uuid).or_default() += u64::from(state == AGENT_CONNECTED);
        });
    }
}

/// # Safety
/// The domain must be valid, and `opaque` must be the pointer that [`register`] gave.
unsafe fn happened(
    domain: *mut Domain,
    opaque: *mut c_void,
    what: impl FnOnce(&mut BTreeMap<String, u64>, String),
) {
    let Ok(api) = Api::get() else {
        return;
    };
    // SAFETY: as the caller guarantees; the weak count stays libvirt's.
    let (uuid, shared) = unsafe {
        let weak = std::mem::ManuallyDrop::new(Weak::from_raw(opaque.cast::<Shared>()));
        (uuid_of(api, domain), weak.upgrade())
    };
    if let (Some(uuid), Some(shared)) = (uuid, shared) {
        what(&mut shared.state().running, uuid);
    }
}

/// Takes back the pointer that [`register`] gave.
unsafe extern "C" fn forget(opaque: *mut c_void) {
    // SAFETY: the pointer was made by `Weak::into_raw` and is given back once.
    drop(unsafe { Weak::from_raw(opaque.cast::<Shared>()) });
}
