//! The API's server: HTTP and JSON on a unix socket, never on TCP.
//!
//! It runs on a thread of its own with a single-threaded runtime, reads the [`SharedState`] and nothing
//! else, and changes nothing. Limits: [`MAX_CONNECTIONS`] at a time (more wait to be accepted), one
//! request per connection, 16 KiB of request head, [`HEAD_TIME`] to send it and
//! [`CONNECTION_TIME`] for the whole exchange. `docs/reference/api.md` describes the API for users.

use crate::state::SharedState;
use crate::window::MAX_WINDOW_S;
use crate::wire::ErrorAnswer;
use crate::{AgentError, metrics};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path as UrlPath, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router, body::Bytes};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs, io};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::{debug, warn};

/// Connections served at a time.
const MAX_CONNECTIONS: usize = 32;
/// The largest request head, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// How long a client may take to send its request's head.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// How long a connection may last.
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// Answers of `/v1/snapshot` at a time: each is as large as the host has threads.
const MAX_SNAPSHOTS: usize = 2;
/// The longest answer of `/v1/decisions`.
const MAX_DECISIONS: usize = 10_000;

/// The running server. Dropping it ends it and removes the socket.
#[derive(Debug)]
pub struct Server {
    socket: PathBuf,
    inode: u64,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `socket`, in the place of a socket that no process listens on any more, and serves the
    /// state from a new thread. Only the agent's own user may connect (mode 0600).
    ///
    /// # Errors
    /// When the path cannot be a socket, or another agent listens there.
    pub fn start(socket: &Path, state: Arc<SharedState>) -> Result<Server, AgentError> {
        let listener = listen(socket)?;
        let error = |e: io::Error| socket_error(socket, e.to_string());
        let inode = fs::symlink_metadata(socket).map_err(error)?.ino();
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(error)?;
        let serve = move || runtime.block_on(serve(listener, state, stopped));
        let thread = std::thread::Builder::new()
            .name("quell-api".into())
            .spawn(serve);
        Ok(Server {
            socket: socket.into(),
            inode,
            stop: Some(stop),
            thread: Some(thread.map_err(error)?),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Sending fails only when the thread has ended already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            if thread.join().is_err() {
                warn!("the API's thread had panicked");
            }
        }
        // Another agent may have put its own socket there meanwhile.
        if fs::symlink_metadata(&self.socket).is_ok_and(|m| m.ino() == self.inode) {
            let _ = fs::remove_file(&self.socket);
        }
    }
}

fn socket_error(path: &Path, message: impl Into<String>) -> AgentError {
    AgentError::Socket {
        path: path.into(),
        message: message.into(),
    }
}

/// A listening socket at `path` that was never open to others: it is bound in a folder that only
/// this user may enter, closed to others there, and moved over the path in one step.
fn listen(path: &Path) -> Result<UnixListener, AgentError> {
    let folder = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|e| {
        socket_error(
            path,
            format!("cannot make its folder: {e}; choose another path with `--socket`"),
        )
    })?;
    if let Ok(there) = fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(socket_error(
                path,
                "exists and is no socket; choose another path with `--socket`",
            ));
        }
        if UnixStream::connect(path).is_ok() {
            let message = "another agent listens there; stop it first, or choose another path with `--socket`";
            return Err(socket_error(path, message));
        }
    }
    let mut private = path.as_os_str().to_owned();
    private.push(format!(".{}", std::process::id()));
    let private = PathBuf::from(private);
    let temporary = private.join("s");
    let clean = || {
        let _ = fs::remove_file(&temporary);
        let _ = fs::remove_dir(&private);
    };
    let bind = || {
        fs::DirBuilder::new().mode(0o700).create(&private)?;
        let listener = UnixListener::bind(&temporary)?;
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o600))?;
        fs::rename(&temporary, path)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    // A dead process of this id may have left the folder.
    clean();
    let bound = bind();
    clean();
    bound.map_err(|e: io::Error| {
        socket_error(
            path,
            format!("cannot listen there: {e}; choose another path with `--socket`"),
        )
    })
}

async fn serve(
    listener: UnixListener,
    state: Arc<SharedState>,
    mut stopped: oneshot::Receiver<()>,
) {
    let listener = match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => return warn!("the API cannot serve: {e}"),
    };
    let router = router(state);
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accept = async {
            // Never closed, so this only ever waits.
            let slot = slots.clone().acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            _ = &mut stopped => return,
            accepted = accept => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(e) => {
                // Out of descriptors: give those in use time to be closed.
                warn!("the API cannot accept a connection: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(MAX_HEAD)
                .keep_alive(false)
                // A client that has sent all of its request still waits for the answer.
                .half_close(true)
                .serve_connection(TokioIo::new(stream), service);
            match tokio::time::timeout(CONNECTION_TIME, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => debug!("API connection ended: {e}"),
                Err(_) => debug!("API connection ended after {CONNECTION_TIME:?}"),
            }
            drop(slot);
        });
    }
}

/// The routes, for the server and for tests.
pub fn router(state: Arc<SharedState>) -> Router {
    let slots = Arc::new(Semaphore::new(MAX_SNAPSHOTS));
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/matrix", get(matrix))
        .route("/v1/explain/{tenant}", get(explain))
        .route("/v1/decisions", get(decisions))
        .route("/v1/admission", get(admission))
        .route(
            "/v1/snapshot",
            get(move |state, query| snapshot(state, query, slots.clone())),
        )
        .route("/metrics", get(metrics_text))
        .fallback(unknown)
        .method_not_allowed_fallback(not_a_get)
        .with_state(state)
}

/// An answer that is an error, as JSON.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(ErrorAnswer { error: self.1 })).into_response()
    }
}

impl From<QueryRejection> for Refusal {
    fn from(rejection: QueryRejection) -> Refusal {
        Refusal(StatusCode::BAD_REQUEST, rejection.body_text())
    }
}

impl From<PathRejection> for Refusal {
    fn from(rejection: PathRejection) -> Refusal {
        Refusal(StatusCode::BAD_REQUEST, rejection.body_text())
    }
}

type Answer<T> = Result<Json<T>, Refusal>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Window {
    #[serde(default = "ten")]
    window_s: u32,
}

fn ten() -> u32 {
    10
}

impl Window {
    fn checked(self) -> Result<u32, Refusal> {
        if (1..=MAX_WINDOW_S).contains(&self.window_s) {
            return Ok(self.window_s);
        }
        let message = format!(
            "`window_s`: {} is outside 1 to {MAX_WINDOW_S}",
            self.window_s
        );
        Err(Refusal(StatusCode::BAD_REQUEST, message))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    #[serde(default)]
    since: u64,
    #[serde(default = "thousand")]
    limit: usize,
}

fn thousand() -> usize {
    1000
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

async fn status(
    State(state): State<Arc<SharedState>>,
    window: Result<Query<Window>, QueryRejection>,
) -> Answer<crate::wire::Status> {
    let window_s = window?.0.checked()?;
    Ok(Json(state.status(window_s)))
}

async fn matrix(
    State(state): State<Arc<SharedState>>,
    window: Result<Query<Window>, QueryRejection>,
) -> Answer<crate::wire::Matrix> {
    let window_s = window?.0.checked()?;
    Ok(Json(state.matrix(window_s)))
}

async fn explain(
    State(state): State<Arc<SharedState>>,
    tenant: Result<UrlPath<String>, PathRejection>,
    query: Result<Query<Nothing>, QueryRejection>,
) -> Answer<crate::wire::Explain> {
    query?;
    let tenant = tenant?.0;
    state
        .explain(&tenant.as_str().into())
        .map(Json)
        .map_err(|there_are| {
            let names: Vec<_> = there_are
                .iter()
                .take(50)
                .map(|name| format!("`{name}`"))
                .collect();
            let tenant = tenant.escape_debug().to_string();
            Refusal(
                StatusCode::NOT_FOUND,
                match names.is_empty() {
                    true => format!("no tenant `{tenant}`; the agent has none yet"),
                    false => format!("no tenant `{tenant}`; there are {}", names.join(", ")),
                },
            )
        })
}

async fn decisions(
    State(state): State<Arc<SharedState>>,
    page: Result<Query<Page>, QueryRejection>,
) -> Answer<crate::wire::Decisions> {
    let page = page?.0;
    if !(1..=MAX_DECISIONS).contains(&page.limit) {
        let message = format!("`limit`: {} is outside 1 to {MAX_DECISIONS}", page.limit);
        return Err(Refusal(StatusCode::BAD_REQUEST, message));
    }
    Ok(Json(state.decisions(page.since, page.limit)))
}

async fn admission(
    State(state): State<Arc<SharedState>>,
    query: Result<Query<Nothing>, QueryRejection>,
) -> Answer<crate::wire::Admission> {
    query?;
    state.admission().map(Json).ok_or_else(|| {
        let message = "nothing is promised here: `criticality` is not in agent.policy, or no period has been completed yet";
        Refusal(StatusCode::NOT_FOUND, message.to_string())
    })
}

async fn snapshot(
    State(state): State<Arc<SharedState>>,
    query: Result<Query<Nothing>, QueryRejection>,
    slots: Arc<Semaphore>,
) -> Result<Response, Refusal> {
    query?;
    let error =
        |e: &dyn std::error::Error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, e.to_string());
    let slot = slots.acquire_owned().await.map_err(|e| error(&e))?;
    let answer = state.snapshot().ok_or_else(|| {
        let message = "no period has been completed yet; ask again after one";
        Refusal(StatusCode::SERVICE_UNAVAILABLE, message.to_string())
    })?;
    let text = serde_json::to_vec(&answer).map_err(|e| error(&e))?;
    let body = Bytes::from_owner(Held { text, _slot: slot });
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// An answer that gives its slot back when the last of it is sent or the connection is gone.
struct Held {
    text: Vec<u8>,
    _slot: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

async fn metrics_text(State(state): State<Arc<SharedState>>) -> Result<Response, Refusal> {
    let text = metrics::encode(&state)
        .map_err(|e| Refusal(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, format)], text).into_response())
}

async fn unknown() -> Refusal {
    let message = "no such resource; there are /v1/status, /v1/matrix, /v1/explain/TENANT, \
                   /v1/decisions, /v1/admission, /v1/snapshot, /metrics";
    Refusal(StatusCode::NOT_FOUND, message.to_string())
}

async fn not_a_get() -> Refusal {
    Refusal(
        StatusCode::METHOD_NOT_ALLOWED,
        "only GET: the API changes nothing".to_string(),
    )
}

#[cfg(test)]
mod tests;
