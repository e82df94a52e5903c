//! nginx: a request gets one document, which is compressed anew each time if so configured.

use super::{Launch, Started, is_root, local, text};
use crate::workload::load::{Answer, Protocol, StreamServer, open};
use crate::workload::process::{family, find_program};
use anyhow::{Context, bail, ensure};
use flate2::read::GzDecoder;
use quell_scenario::Nginx;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

const REQUEST: &[u8] =
    b"GET /document.txt HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n";

/// The header in which a worker names its process id.
const WORKER: &str = "X-Worker";

/// Starts nginx with a configuration of its own.
///
/// # Errors
/// Where nginx is not installed, does not start or answer in time, or answers with another document.
pub fn start(app: &Nginx, launch: &Launch<'_>, port: u16) -> anyhow::Result<Started> {
    let program = find_program("nginx", "nginx-light")?;
    let folder = &launch.folder;
    let workers = app.workers.on(launch.cpus);
    let document = text(2, app.document_kb as usize * 1024);
    let root = folder.join("root");
    std::fs::create_dir_all(&root).context("cannot make nginx's folder")?;
    std::fs::write(root.join("document.txt"), &document).context("cannot write the document")?;
    // Workers of another user could not read our folder.
    let user = if is_root() { "user root;" } else { "" };
    let gzip = if app.gzip { "on" } else { "off" };
    let (level, path) = (app.gzip_level, folder.display());
    let config = format!(
        "daemon off; {user} worker_processes {workers}; pid {path}/pid; error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; default_type text/plain; server_tokens off;
  client_body_temp_path {path}/body; proxy_temp_path {path}/proxy; fastcgi_temp_path {path}/fastcgi;
  uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;
  tcp_nodelay on; keepalive_timeout 1d; keepalive_requests 1000000000;
  gzip {gzip}; gzip_types text/plain; gzip_comp_level {level}; gzip_min_length 0;
  server {{ listen 127.0.0.1:{port} reuseport; root {path}/root; add_header {WORKER} $pid; }}
}}
"
    );
    let config_file = folder.join("nginx.conf");
    std::fs::write(&config_file, config).context("cannot write nginx's configuration")?;
    let mut command = Command::new(program);
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
        .arg("-e")
        .arg("stderr")
        .arg("-p")
        .arg(folder)
        .arg("-c")
        .arg(&config_file);
    let process = launch.start(command)?;

    let mut stream = launch.connection(&process, port)?;
    let response = get(&mut stream)?;
    launch.until(&process, || {
        ensure!(
            family(process.pid()).len() > workers as usize,
            "nginx has not all its workers"
        );
        Ok(())
    })?;
    // The first answer is what all answers must be, once it has been checked itself.
    let mut plain = Vec::new();
    if app.gzip {
        GzDecoder::new(&response.body[..])
            .read_to_end(&mut plain)
            .context("nginx sent something that is not gzip")?;
    } else {
        plain.clone_from(&response.body);
    }
    ensure!(
        plain == document,
        "nginx sent another document than it was given"
    );
    let protocol = Get {
        body: response.body,
        workers,
    };
    let connect = Box::new(StreamServer::new(local(port), protocol));
    Ok(Started {
        process,
        connect: Some(connect),
        work: None,
        counts: None,
    })
}

/// The protocol: GET of the document.
struct Get {
    /// The right body.
    body: Vec<u8>,
    workers: u32,
}

impl Protocol for Get {
    type Expected = ();

    fn request(&self, _rng: &mut ChaCha8Rng, out: &mut Vec<u8>) {
        out.extend_from_slice(REQUEST);
    }

    fn answer(&self, _expected: &(), bytes: &[u8]) -> Answer {
        let good = b"HTTP/1.1 200";
        let seen = bytes.len().min(good.len());
        if bytes[..seen] != good[..seen] {
            return Answer::Wrong;
        }
        if bytes.len() < self.body.len() {
            return Answer::Partial;
        }
        match parse(bytes) {
            Ok(None) => Answer::Partial,
            Ok(Some((response, length))) if response.body == self.body => Answer::Right(length),
            _ => Answer::Wrong,
        }
    }

    /// The kernel spreads connections over workers by a hash of their ports, so by chance. Chance would make
    /// one side of a comparison busier than another: so more connections than needed are opened, and equally
    /// many of each worker are kept.
    fn open(&self, address: SocketAddr, connections: u32) -> anyhow::Result<Vec<TcpStream>> {
        let share = connections.div_ceil(self.workers) as usize;
        let mut of_worker: BTreeMap<u32, usize> = BTreeMap::new();
        let mut kept = Vec::new();
        for _ in 0..connections * 64 {
            if kept.len() == connections as usize {
                return Ok(kept);
            }
            let mut stream = open(address)?;
            let worker = get(&mut stream)?.worker;
            let count = of_worker.entry(worker).or_default();
            if *count < share {
                *count += 1;
                kept.push(stream);
            }
        }
        bail!(
            "could not spread {connections} connections over {} workers of nginx",
            self.workers
        )
    }
}

/// The parts of a response that matter.
struct Response {
    body: Vec<u8>,
    worker: u32,
}

/// Sends one request and reads its response on a blocking connection.
fn get(stream: &mut TcpStream) -> anyhow::Result<Response> {
    stream.write_all(REQUEST).context("cannot ask nginx")?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let read = stream.read(&mut buffer).context("nginx does not answer")?;
        ensure!(read > 0, "nginx closed the connection");
        bytes.extend_from_slice(&buffer[..read]);
        if let Some((response, _)) = parse(&bytes)? {
            return Ok(response);
        }
    }
}

/// Reads a response and its length; `None` if it is not complete.
fn parse(bytes: &[u8]) -> anyhow::Result<Option<(Response, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head_length) = head.parse(bytes)? else {
        return Ok(None);
    };
    ensure!(
        head.code == Some(200),
        "nginx answered with status {:?}",
        head.code
    );
    let header = |name: &str| -> Option<&str> {
        let header = head
            .headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name));
        header.and_then(|header| std::str::from_utf8(header.value).ok())
    };
    let worker = header(WORKER)
        .and_then(|pid| pid.parse().ok())
        .context("no worker's pid")?;
    let rest = &bytes[head_length..];
    if let Some(length) = header("Content-Length") {
        let length: usize = length.parse().context("Content-Length is no number")?;
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        return Ok(Some((
            Response {
                body: body.to_vec(),
                worker,
            },
            head_length + length,
        )));
    }
    ensure!(
        header("Transfer-Encoding") == Some("chunked"),
        "a response without a length"
    );
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let size = httparse::parse_chunk_size(&rest[at..]);
        let Ok(size) = size else {
            bail!("bad chunk size")
        };
        let httparse::Status::Complete((line, size)) = size else {
            return Ok(None);
        };
        at += line;
        let Some(chunk) = rest.get(at..at + size as usize + 2) else {
            return Ok(None);
        };
        ensure!(chunk.ends_with(b"\r\n"), "a chunk without an end");
        body.extend_from_slice(&chunk[..size as usize]);
        at += chunk.len();
        if size == 0 {
            return Ok(Some((Response { body, worker }, head_length + at)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_right_only_whole_and_unchanged() {
        let get = Get {
            body: b"hello world".to_vec(),
            workers: 1,
        };
        let chunked = b"HTTP/1.1 200 OK\r\nX-Worker: 7\r\nTransfer-Encoding: chunked\r\n\r\n\
                        5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
        let plain = b"HTTP/1.1 200 OK\r\nX-Worker: 7\r\nContent-Length: 11\r\n\r\nhello world";
        for response in [&chunked[..], &plain[..]] {
            let check = |bytes: &[u8]| get.answer(&(), bytes);
            assert_eq!(check(response), Answer::Right(response.len()));
            assert_eq!(
                check(&[response, b"HTTP"].concat()),
                Answer::Right(response.len())
            );
            for cut in 0..response.len() {
                assert_eq!(check(&response[..cut]), Answer::Partial, "{cut}");
            }
            let text = String::from_utf8_lossy(response).replace("world", "w0rld");
            assert_eq!(check(text.as_bytes()), Answer::Wrong);
        }
        assert_eq!(get.answer(&(), b"HTTP/1.1 500 Internal"), Answer::Wrong);
    }
}
