//! A blocking client of the agent's API, for the command line.

use crate::wire::{Admission, Decisions, ErrorAnswer, Explain, Matrix, SnapshotAnswer, Status};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 256 << 20;

/// Asks one agent.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens on the socket.
    #[error("no agent answers on {}; start one with `quell run -c /etc/quell/quell.toml` or `systemctl start quell`, \
             or name another socket with `--socket`", socket.display())]
    NotRunning {
        /// The socket.
        socket: PathBuf,
    },
    /// The socket may not be used.
    #[error("may not ask the agent on {}: only its own user (root) may; use sudo", socket.display())]
    Denied {
        /// The socket.
        socket: PathBuf,
    },
    /// The conversation broke off.
    #[error("the agent on {} did not answer: {reason}", socket.display())]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The agent answered with an error.
    #[error("{error}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The agent's words.
        error: String,
    },
}

impl Client {
    /// A client of the agent on `socket`. Nothing is connected yet.
    pub fn new(socket: impl Into<PathBuf>) -> Client {
        Client {
            socket: socket.into(),
        }
    }

    /// The socket of the agent.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// `GET /v1/status`, the tenants' figures over the last ten seconds.
    ///
    /// # Errors
    /// As [`Client::text`], or when the answer is not of this version.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.json("/v1/status")
    }

    /// `GET /v1/status`, the tenants' figures over the last `window_s` seconds.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn status_over(&self, window_s: u32) -> Result<Status, ClientError> {
        self.json(&format!("/v1/status?window_s={window_s}"))
    }

    /// `GET /v1/matrix`, the window being the last `window_s` seconds.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn matrix(&self, window_s: u32) -> Result<Matrix, ClientError> {
        self.json(&format!("/v1/matrix?window_s={window_s}"))
    }

    /// `GET /v1/explain/TENANT`.
    ///
    /// # Errors
    /// As [`Client::status`]; and when there is no such tenant.
    pub fn explain(&self, tenant: &str) -> Result<Explain, ClientError> {
        // Names are letters, digits, `.`, `_`, `-`; the rest is escaped so that the agent, not
        // a broken request, says that there is no such tenant.
        let escaped: String = tenant
            .bytes()
            .map(|b| match b {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                    char::from(b).to_string()
                }
                _ => format!("%{b:02X}"),
            })
            .collect();
        self.json(&format!("/v1/explain/{escaped}"))
    }

    /// `GET /v1/decisions`: those from number `since` on.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn decisions(&self, since: u64) -> Result<Decisions, ClientError> {
        self.json(&format!("/v1/decisions?since={since}"))
    }

    /// `GET /v1/admission`.
    ///
    /// # Errors
    /// As [`Client::status`]; and when nothing is promised.
    pub fn admission(&self) -> Result<Admission, ClientError> {
        self.json("/v1/admission")
    }

    /// `GET /v1/snapshot`.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn snapshot(&self) -> Result<SnapshotAnswer, ClientError> {
        self.json("/v1/snapshot")
    }

    /// `GET` of any path: the answer's text.
    ///
    /// # Errors
    /// When no agent answers on the socket, the conversation breaks off, or the answer is an error.
    pub fn text(&self, path: &str) -> Result<String, ClientError> {
        let (status, body) = self.get(path)?;
        let text = String::from_utf8_lossy(&body).into_owned();
        if status.is_success() {
            return Ok(text);
        }
        let error = serde_json::from_str::<ErrorAnswer>(&text).map_or(text, |answer| answer.error);
        Err(ClientError::Refused {
            status: status.as_u16(),
            error,
        })
    }

    fn json<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let text = self.text(path)?;
        serde_json::from_str(&text).map_err(|e| {
            self.broken(format!(
                "its answer is not what this version of quell expects: {e}"
            ))
        })
    }

    fn get(&self, path: &str) -> Result<(StatusCode, Bytes), ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| self.broken(e.to_string()))?;
        runtime.block_on(async {
            match tokio::time::timeout(TIMEOUT, self.exchange(path)).await {
                Ok(answer) => answer,
                Err(_) => Err(self.broken(format!("no answer within {} s", TIMEOUT.as_secs()))),
            }
        })
    }

    async fn exchange(&self, path: &str) -> Result<(StatusCode, Bytes), ClientError> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|e| match e.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    ClientError::NotRunning {
                        socket: self.socket.clone(),
                    }
                }
                io::ErrorKind::PermissionDenied => ClientError::Denied {
                    socket: self.socket.clone(),
                },
                _ => self.broken(e.to_string()),
            })?;
        let broken = |e: hyper::Error| self.broken(e.to_string());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        let connection = tokio::spawn(connection);
        let request = Request::get(path)
            .header("host", "quell")
            .body(Empty::<Bytes>::new())
            .map_err(|e| self.broken(e.to_string()))?;
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|e| self.broken(e.to_string()))?
            .to_bytes();
        connection.abort();
        Ok((status, body))
    }

    fn broken(&self, reason: String) -> ClientError {
        ClientError::Broken {
            socket: self.socket.clone(),
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_socket_and_a_dead_socket_say_how_to_start_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let absent = Client::new(dir.path().join("absent.sock"));
        let dead = dir.path().join("dead.sock");
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
        for client in [absent, Client::new(dead)] {
            let error = client.status().unwrap_err();
            assert!(matches!(error, ClientError::NotRunning { .. }), "{error}");
            assert!(error.to_string().contains("quell run -c"), "{error}");
        }
    }
}
