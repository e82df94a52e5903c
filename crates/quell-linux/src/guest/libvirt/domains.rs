//! What libvirt runs, as it says itself: asked once for each connection, then told by its events.

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

/// Between tries to connect, and between looks at whether a connection still is one.
const PAUSE: Duration = Duration::from_secs(1);
/// A libvirt that takes longer to answer is not there.
const CONNECTING: Duration = Duration::from_secs(5);

/// The domains that a libvirt runs. A handle: copies are of the same.
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
    /// What runs, and how often its guest agent has come.
    running: BTreeMap<String, u64>,
}

#[derive(Debug)]
enum Reach {
    /// Nobody has asked yet.
    Unasked,
    Connecting(Instant),
    Here,
    Away(String),
}

/// What is known of a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing yet.
    NotYet,
    /// libvirt cannot be asked.
    Away(String),
    /// libvirt has no such domain that runs.
    Unknown,
    /// It runs.
    Running {
        /// How often its guest agent has come since it is known.
        agents: u64,
    },
}

impl Domains {
    /// Those of the libvirt there. It is asked once somebody wants to know.
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

    /// Where that is.
    pub fn uri(&self) -> &str {
        &self.0.uri
    }

    /// What is known of a domain now. Never waits.
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

/// Connects, again and again, and follows what happens, until nobody is interested.
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

/// A connection whose events come to that, which knows all that runs.
fn connect(shared: &Arc<Shared>) -> Result<Connection, GuestError> {
    let connection = Connection::open(&shared.uri)?;
    // First, so that nothing is missed between.
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
    // SAFETY: libvirt takes all callbacks as functions of one type, and calls each by the type that belongs to its event: these are the events'.
    let agent = unsafe { std::mem::transmute::<AgentLifecycle, Lifecycle>(agent) };
    for (event, call) in [
        (EVENT_LIFECYCLE, lifecycle as Lifecycle),
        (EVENT_AGENT, agent),
    ] {
        let opaque = Weak::into_raw(Arc::downgrade(shared)).cast_mut().cast();
        // SAFETY: the connection is open. The pointer is a weak count of its own, which libvirt gives to `forget` once it calls no more.
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
            // SAFETY: libvirt did not take it.
            unsafe { forget(opaque) };
            return Err(error);
        }
    }
    Ok(())
}

/// A domain starts, stops, or something else happens to it.
unsafe extern "C" fn lifecycle(
    _: *mut Connect,
    domain: *mut Domain,
    event: c_int,
    _detail: c_int,
    opaque: *mut c_void,
) -> c_int {
    // SAFETY: libvirt calls this with what was registered, and a domain that is good for the call.
    unsafe {
        happened(domain, opaque, |running, uuid| match event {
            STARTED => drop(running.entry(uuid).or_default()),
            STOPPED => drop(running.remove(&uuid)),
            _ => {}
        });
    }
    0
}

/// A guest agent comes or goes.
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
/// The domain is good, and `opaque` what [`register`] gave.
unsafe fn happened(
    domain: *mut Domain,
    opaque: *mut c_void,
    what: impl FnOnce(&mut BTreeMap<String, u64>, String),
) {
    let Ok(api) = Api::get() else {
        return;
    };
    // SAFETY: as the caller says; the weak count stays libvirt's.
    let (uuid, shared) = unsafe {
        let weak = std::mem::ManuallyDrop::new(Weak::from_raw(opaque.cast::<Shared>()));
        (uuid_of(api, domain), weak.upgrade())
    };
    if let (Some(uuid), Some(shared)) = (uuid, shared) {
        what(&mut shared.state().running, uuid);
    }
}

/// Gives back what [`register`] gave.
unsafe extern "C" fn forget(opaque: *mut c_void) {
    // SAFETY: it was made by `Weak::into_raw` and is given back once.
    drop(unsafe { Weak::from_raw(opaque.cast::<Shared>()) });
}
