//! The guest's initial file system, built so that the same input gives the same bytes.
//!
//! A guest's boot history changes measurements in the guest by a few percent, and its memory's contents are
//! part of that history. So names are sorted, times are zero, owners are root, inode numbers count up, and
//! the archive holds nothing of the build's surroundings.
//!
//! The layout is that of a merged `/usr`: `/bin`, `/sbin`, `/lib` and `/lib64` are links, and a file that is
//! put there goes to its place under `/usr`. The archive is not compressed: an emulated guest unpacks more
//! slowly than the host writes.

use crate::error::LabError;
use crate::kernel::Kernel;
use crate::qemu::{Qemu, find_program};
use cpio::newc::{Builder, ModeFileType, trailer};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// The guest's first process.
const INIT: &str = include_str!("../../../lab/init");

/// What runs the guest's command.
const SERVE: &str = include_str!("../../../lab/serve");

/// Where the image has a whole system, which takes the place of the image's own.
const HOST: &str = "host";

/// Modules that a system's programs expect to be loaded on demand: there is no modprobe in the guest.
const HOST_MODULES: [&str; 5] = ["overlay", "veth", "bridge", "tun", "autofs4"];

/// The unit that runs the guest's command, once systemd has started what it starts.
const UNIT: &str = "[Unit]
Description=The lab's command
[Service]
Type=idle
ExecStart=/lab/busybox sh /lab/serve
StandardOutput=journal+console
StandardError=journal+console
";

/// systemd's units that would only delay the guest: they bring caches up to date, or wait for devices.
const IDLE_UNITS: [&str; 7] = [
    "getty.target",
    "ldconfig.service",
    "serial-getty@ttyS0.service",
    "systemd-hwdb-update.service",
    "systemd-journal-catalog-update.service",
    "systemd-journal-flush.service",
    "systemd-udev-trigger.service",
];

/// Modules for the guest's output, where they are not built into the kernel.
const CHANNEL_MODULES: [&str; 2] = ["virtio_pci", "virtio_console"];

#[derive(Debug)]
enum Node {
    Dir,
    Link(PathBuf),
    Bytes(Vec<u8>, u32),
    File(PathBuf, u32),
}

/// The module of the firmware's configuration device, by which a guest that goes on from a snapshot gets its
/// own texts.
const GIVEN_MODULE: &str = "qemu_fw_cfg";

/// A guest's initial file system.
#[derive(Debug)]
pub struct Image {
    nodes: BTreeMap<PathBuf, Node>,
    /// Small texts that differ between guests of the same programs: its command, a scenario.
    given: BTreeMap<PathBuf, Node>,
    can_go_on: bool,
    /// Whether a whole system is in the image, and files of the user's go into that.
    is_system: bool,
}

impl Image {
    /// An image with what every guest has: busybox, init, a few files of /etc, the kernel's configuration.
    ///
    /// # Errors
    /// [`LabError::Io`] or [`LabError::Tool`] where busybox or a module of the kernel cannot be read.
    pub fn new(kernel: &Kernel, busybox: &Path) -> Result<Image, LabError> {
        let mut image = Image {
            nodes: BTreeMap::new(),
            given: BTreeMap::new(),
            can_go_on: false,
            is_system: false,
        };
        for (link, target) in [
            ("bin", "usr/bin"),
            ("sbin", "usr/sbin"),
            ("lib", "usr/lib"),
            ("lib64", "usr/lib64"),
        ] {
            image.dir(&Path::new("/").join(target));
            image.nodes.insert(link.into(), Node::Link(target.into()));
        }
        for dir in [
            "/proc",
            "/sys",
            "/dev",
            "/run",
            "/tmp",
            "/var/tmp",
            "/var/lib",
            "/var/log",
            "/root",
            "/out",
            "/lab/modules",
            "/lab/given",
        ] {
            image.dir(Path::new(dir));
        }
        image.bytes(Path::new("/init"), INIT.as_bytes(), 0o755);
        image.bytes(Path::new("/lab/serve"), SERVE.as_bytes(), 0o644);
        image.file(busybox, Path::new("/bin/busybox"))?;
        for shell in ["sh", "cat", "mount"] {
            image.link(&Path::new("/bin").join(shell), Path::new("busybox"));
        }
        for (file, text) in [
            (
                "/etc/passwd",
                "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
            ),
            ("/etc/group", "root:x:0:\nnogroup:x:65534:\n"),
            ("/etc/hosts", "127.0.0.1 localhost quell-lab\n"),
            (
                "/etc/nsswitch.conf",
                "passwd: files\ngroup: files\nhosts: files\n",
            ),
            (
                "/etc/os-release",
                "ID=quell-lab\nNAME=\"Quell lab guest\"\nPRETTY_NAME=\"Quell lab guest\"\n",
            ),
        ] {
            image.bytes(Path::new(file), text.as_bytes(), 0o644);
        }
        if let Some(config) = &kernel.config {
            // libbpf looks for it there.
            let at = format!("/boot/config-{}", kernel.release);
            image.file(config, Path::new(&at))?;
        }
        image.modules(kernel, &CHANNEL_MODULES, "/lab/modules")?;
        match image.modules(kernel, &[GIVEN_MODULE], "/lab/given") {
            // A driver that is built in would read the device before the guest goes on.
            Ok(files) => image.can_go_on = files > 0,
            Err(e) => {
                tracing::warn!("guests boot each time instead of going on from a snapshot: {e}")
            }
        }
        Ok(image)
    }

    /// Puts a kernel's modules and those that they depend on into a folder, decompressed, named in the order
    /// to load them, and gives their number. Modules that are built in are left out.
    ///
    /// # Errors
    /// [`LabError::Io`] where a module cannot be read; [`LabError::Tool`] where `xz` is not there;
    /// [`LabError::Program`] where `xz` failed.
    pub fn modules(
        &mut self,
        kernel: &Kernel,
        names: &[&str],
        to: &str,
    ) -> Result<usize, LabError> {
        let modules = kernel.modules(names)?;
        for (index, (name, bytes)) in modules.iter().enumerate() {
            self.bytes(Path::new(&format!("{to}/{index:02}-{name}")), bytes, 0o644);
        }
        Ok(modules.len())
    }

    /// Makes the guest a host: the unpacked packages below `root`, with systemd as the first process. Files
    /// that are put into the guest from now on go into that system.
    ///
    /// # Errors
    /// [`LabError::Io`] where a file of the system or a module of the kernel cannot be read.
    pub fn system(&mut self, root: &Path, kernel: &Kernel) -> Result<(), LabError> {
        self.modules(kernel, &HOST_MODULES, "/lab/modules")?;
        self.linked_tree(root, Path::new(HOST))?;
        self.is_system = true;
        for (file, text) in [
            ("/etc/hostname", "quell-lab\n"),
            ("/etc/machine-id", ""),
            ("/etc/systemd/system/quell-lab.service", UNIT),
            // tmpfs, which the guest's files are on, is no place for overlays.
            (
                "/etc/containers/storage.conf",
                "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\n\
                 graphroot = \"/var/lib/containers/storage\"\n",
            ),
            (
                "/etc/containers/policy.json",
                "{\"default\":[{\"type\":\"insecureAcceptAnything\"}]}\n",
            ),
            (
                "/etc/passwd",
                "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
            ),
            ("/etc/group", "root:x:0:\nnogroup:x:65534:\n"),
            ("/etc/shadow", "root:*:19000:0:99999:7:::\n"),
        ] {
            self.bytes(Path::new(file), text.as_bytes(), 0o644);
        }
        if let Some(config) = &kernel.config {
            let at = format!("/boot/config-{}", kernel.release);
            self.file(config, Path::new(&at))?;
        }
        let units = Path::new("/etc/systemd/system");
        for unit in IDLE_UNITS {
            self.link(&units.join(unit), Path::new("/dev/null"));
        }
        let target = Path::new("/usr/lib/systemd/system/multi-user.target");
        self.link(&units.join("default.target"), target);
        let unit = units.join("multi-user.target.wants/quell-lab.service");
        self.link(&unit, Path::new("../quell-lab.service"));
        // Packages' scripts would decide which programs these are.
        for (name, program) in [("sh", "bash"), ("awk", "gawk")] {
            self.link(&Path::new("/usr/bin").join(name), Path::new(program));
        }
        // They would also take these two folders away, and programs look there for one another's sockets.
        for (name, folder) in [("run", "/run"), ("lock", "/run/lock")] {
            let at = Path::new("/var").join(name);
            let there = self.at(&at);
            self.nodes.retain(|path, _| !path.starts_with(&there));
            self.link(&at, Path::new(folder));
        }
        for dir in ["/root", "/proc", "/sys", "/dev", "/run", "/tmp"] {
            self.dir(Path::new(dir));
        }
        Ok(())
    }

    /// Puts a folder and its content into the guest as they are, links too; `to` is a place in the archive.
    fn linked_tree(&mut self, from: &Path, to: &Path) -> Result<(), LabError> {
        self.nodes.insert(to.to_path_buf(), Node::Dir);
        for entry in fs::read_dir(from).map_err(LabError::io(from))? {
            let entry = entry.map_err(LabError::io(from))?;
            let (path, to) = (entry.path(), to.join(entry.file_name()));
            let metadata = fs::symlink_metadata(&path).map_err(LabError::io(&path))?;
            let kind = metadata.file_type();
            if kind.is_dir() {
                self.linked_tree(&path, &to)?;
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).map_err(LabError::io(&path))?;
                self.nodes.insert(to, Node::Link(target));
            } else if kind.is_file() {
                let executable = metadata.permissions().mode() & 0o111 != 0;
                let mode = if executable { 0o755 } else { 0o644 };
                self.nodes.insert(to, Node::File(path, mode));
            }
        }
        Ok(())
    }

    /// Whether a guest with this kernel can go on from a snapshot.
    pub(crate) fn can_go_on(&self) -> bool {
        self.can_go_on
    }

    /// Sets the guest's command: a program and its arguments. An empty command is a shell on the console.
    pub fn command(&mut self, command: &[String]) {
        if command.is_empty() {
            self.bytes(Path::new("/lab/interactive"), b"", 0o644);
            return;
        }
        let words: Vec<String> = command.iter().map(|word| quote(word)).collect();
        let script = format!("exec {}\n", words.join(" "));
        self.text(Path::new("/lab/command"), &script);
    }

    /// Adds a small text that differs between guests of the same programs; snapshots do not hold it. The last
    /// text for a place counts.
    pub fn text(&mut self, to: &Path, text: &str) {
        let at = place(to);
        self.parents(&at);
        self.given
            .insert(at, Node::Bytes(text.as_bytes().to_vec(), 0o644));
    }

    /// Puts the user's file or folder into the guest, programs with the libraries that they need.
    ///
    /// `what` is `HOST` or `HOST:GUEST`. A name without a slash that is no file here is a program on `PATH`
    /// and goes to its own place; anything else goes to `/root/NAME` unless `GUEST` names the place.
    ///
    /// # Errors
    /// [`LabError::GuestFile`] where there is no such file or program, where `GUEST` is no absolute path, or
    /// where a program's library or interpreter is not on this machine; [`LabError::Tool`] where `ldd` is not
    /// there; [`LabError::Io`] where a file cannot be read.
    pub fn add(&mut self, what: &str) -> Result<(), LabError> {
        let (host, guest) = match what.split_once(':') {
            Some((host, guest)) => (host, Some(PathBuf::from(guest))),
            None => (what, None),
        };
        let mut path = PathBuf::from(host);
        let mut to = guest;
        if !host.contains('/') && !path.exists() {
            path = find_program(host).ok_or_else(|| LabError::GuestFile {
                path: host.into(),
                problem: "neither a file here nor a program on PATH".into(),
            })?;
            to = to.or_else(|| Some(path.clone()));
        }
        let to = match to {
            Some(to) => to,
            None => {
                let path = path.canonicalize().map_err(LabError::io(&path))?;
                Path::new("/root").join(path.file_name().unwrap_or_default())
            }
        };
        if !to.is_absolute() {
            return Err(LabError::GuestFile {
                path: to,
                problem: "the place in the guest must be an absolute path".into(),
            });
        }
        self.tree(&path, &to)
    }

    /// Puts a program at a place in the guest, with the libraries that it needs at their own places.
    ///
    /// # Errors
    /// [`LabError::GuestFile`] where a library or interpreter of the program is not on this machine;
    /// [`LabError::Tool`] where `ldd` is not there; [`LabError::Io`] where a file cannot be read.
    pub fn program(&mut self, from: &Path, to: &Path) -> Result<(), LabError> {
        self.file(from, to)?;
        match first_line(from)? {
            Some(line) => self.interpreter(from, &line),
            None => self.libraries(from),
        }
    }

    /// Puts QEMU into the guest, for machines within it: `/usr/bin/qemu` starts QEMU there.
    ///
    /// # Errors
    /// As [`Image::program`].
    pub fn emulator(&mut self, qemu: &Qemu) -> Result<(), LabError> {
        let share = ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"];
        let mut start = match qemu.root() {
            // With the C library of its packages, and under its own name instead of the loader's.
            Some(root) => {
                for part in ["usr/lib64", "usr/lib", "usr/bin", "usr/share"] {
                    self.plain_tree(&root.join(part), &Path::new("/lab/qemu").join(part))?;
                }
                self.link(Path::new("/lab/qemu/lib64"), Path::new("usr/lib64"));
                "for dir in dev proc root tmp; do\n    mkdir -p /lab/qemu/$dir\n    \
                 mountpoint -q /lab/qemu/$dir || mount --bind /$dir /lab/qemu/$dir\ndone\n\
                 exec chroot /lab/qemu /usr/bin/qemu-system-x86_64"
                    .to_string()
            }
            None => {
                self.program(&qemu.program, &qemu.program)?;
                for part in share.map(|part| Path::new("/").join(part)) {
                    if part.is_dir() {
                        self.plain_tree(&part, &part)?;
                    }
                }
                format!("exec {}", qemu.program.display())
            }
        };
        for part in share {
            start += " -L /";
            start += part;
        }
        let script = format!("#!/bin/sh\n{start} \"$@\"\n");
        self.bytes(Path::new("/usr/bin/qemu"), script.as_bytes(), 0o755);
        Ok(())
    }

    /// Puts a folder and its content into the guest, programs without the libraries that they need.
    fn plain_tree(&mut self, from: &Path, to: &Path) -> Result<(), LabError> {
        self.dir(to);
        for entry in fs::read_dir(from).map_err(LabError::io(from))? {
            let entry = entry.map_err(LabError::io(from))?;
            let (path, to) = (entry.path(), to.join(entry.file_name()));
            // Links that lead nowhere (alternatives that were never set) are left out.
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => self.plain_tree(&path, &to)?,
                Ok(metadata) if metadata.is_file() => self.file(&path, &to)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Puts a file, or a folder and its content, into the guest, programs with the libraries that they need.
    fn tree(&mut self, from: &Path, to: &Path) -> Result<(), LabError> {
        let metadata = fs::metadata(from).map_err(|e| LabError::GuestFile {
            path: from.to_path_buf(),
            problem: e.to_string(),
        })?;
        if metadata.is_dir() {
            self.dir(to);
            for entry in fs::read_dir(from).map_err(LabError::io(from))? {
                let entry = entry.map_err(LabError::io(from))?;
                self.tree(&entry.path(), &to.join(entry.file_name()))?;
            }
            return Ok(());
        }
        if !metadata.is_file() {
            return Err(LabError::GuestFile {
                path: from.to_path_buf(),
                problem: "neither a file nor a folder".into(),
            });
        }
        if metadata.permissions().mode() & 0o111 != 0 {
            return self.program(from, to);
        }
        self.file(from, to)
    }

    /// Puts a file into the guest as it is. Of its mode only whether it is executable is kept.
    ///
    /// # Errors
    /// [`LabError::Io`] where there is no such file.
    pub fn file(&mut self, from: &Path, to: &Path) -> Result<(), LabError> {
        let metadata = fs::metadata(from).map_err(LabError::io(from))?;
        let executable = metadata.permissions().mode() & 0o111 != 0;
        let from = from.canonicalize().map_err(LabError::io(from))?;
        self.insert(to, Node::File(from, if executable { 0o755 } else { 0o644 }));
        Ok(())
    }

    /// Puts a file with these bytes into the guest.
    pub fn bytes(&mut self, to: &Path, bytes: &[u8], mode: u32) {
        self.insert(to, Node::Bytes(bytes.to_vec(), mode));
    }

    fn link(&mut self, at: &Path, target: &Path) {
        self.insert(at, Node::Link(target.to_path_buf()));
    }

    /// The place of a guest's path in the archive.
    fn at(&self, path: &Path) -> PathBuf {
        let own = path.starts_with("/lab");
        match self.is_system && !own {
            true => Path::new(HOST).join(place(path)),
            false => place(path),
        }
    }

    fn dir(&mut self, at: &Path) {
        let at = self.at(at);
        self.parents(&at);
        self.nodes.entry(at).or_insert(Node::Dir);
    }

    fn insert(&mut self, at: &Path, node: Node) {
        let at = self.at(at);
        self.parents(&at);
        self.nodes.insert(at, node);
    }

    fn parents(&mut self, at: &Path) {
        for parent in at.ancestors().skip(1) {
            if !parent.as_os_str().is_empty() {
                self.nodes.entry(parent.to_path_buf()).or_insert(Node::Dir);
            }
        }
    }

    /// Puts the interpreter that a script's first line names into the guest.
    fn interpreter(&mut self, script: &Path, line: &str) -> Result<(), LabError> {
        let mut words = line.split_whitespace();
        let mut program = words.next().unwrap_or_default();
        if program.ends_with("/env") {
            program = words.next().unwrap_or_default();
        }
        let name = Path::new(program).file_name().unwrap_or_default();
        let at = self.at(Path::new(program));
        if name == "sh" || name == "busybox" || self.nodes.contains_key(&at) {
            return Ok(());
        }
        let found = if program.contains('/') {
            Some(PathBuf::from(program)).filter(|path| path.is_file())
        } else {
            find_program(program)
        };
        let found = found.ok_or_else(|| LabError::GuestFile {
            path: script.to_path_buf(),
            problem: format!("its interpreter `{program}` is not on this machine"),
        })?;
        self.program(&found, &found)
    }

    /// Puts the shared libraries of a program into the guest, at their own places.
    fn libraries(&mut self, program: &Path) -> Result<(), LabError> {
        let mut command = Command::new("ldd");
        command.arg(program).env("LC_ALL", "C");
        let output = command.output().map_err(|source| LabError::Tool {
            program: "ldd".into(),
            package: "libc-bin",
            source,
        })?;
        // ldd fails for a program that is not dynamic, which needs no libraries.
        let text = String::from_utf8_lossy(&output.stdout);
        for library in libraries_in(&text).map_err(|missing| LabError::GuestFile {
            path: program.to_path_buf(),
            problem: format!("needs {missing}, which is not on this machine"),
        })? {
            // A system has its own libraries, and a program that was built here runs with newer ones.
            let there = self.is_system && self.nodes.contains_key(&self.at(Path::new(library)));
            if !there {
                self.file(Path::new(library), Path::new(library))?;
            }
        }
        Ok(())
    }

    /// Writes the image as an uncompressed cpio archive. Equal content gives equal bytes.
    ///
    /// # Errors
    /// [`LabError::Io`] where a file of the image cannot be read or has 4 GiB or more, or the archive cannot
    /// be written.
    pub fn write(&self, to: &Path) -> Result<(), LabError> {
        let mut nodes: BTreeMap<&PathBuf, &Node> = self.nodes.iter().collect();
        nodes.extend(&self.given);
        write(nodes, to)
    }

    /// Writes the image as [`Image::write`] does, without the texts of one guest.
    pub(crate) fn write_common(&self, to: &Path) -> Result<(), LabError> {
        write(self.nodes.iter().collect(), to)
    }

    /// The texts of one guest as a tar archive.
    pub(crate) fn given(&self) -> Result<Vec<u8>, LabError> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, node) in &self.given {
            if let Node::Bytes(bytes, mode) = node {
                let mut header = tar::Header::new_gnu();
                header.set_size(bytes.len() as u64);
                header.set_mode(*mode);
                let added = archive.append_data(&mut header, path, &bytes[..]);
                added.map_err(LabError::io(path))?;
            }
        }
        archive.into_inner().map_err(LabError::io(Path::new("tar")))
    }
}

fn write(nodes: BTreeMap<&PathBuf, &Node>, to: &Path) -> Result<(), LabError> {
    let file = File::create(to).map_err(LabError::io(to))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    for (inode, (path, node)) in (1u32..).zip(nodes) {
        let name = path.to_string_lossy();
        let entry = Builder::new(&name)
            .ino(inode)
            .uid(0)
            .gid(0)
            .mtime(0)
            .nlink(1);
        match node {
            Node::Dir => {
                let entry = entry
                    .mode(0o755)
                    .set_mode_file_type(ModeFileType::Directory);
                finish(&mut out, entry.nlink(2), &[], to)?;
            }
            Node::Link(target) => {
                let entry = entry.mode(0o777).set_mode_file_type(ModeFileType::Symlink);
                finish(&mut out, entry, target.as_os_str().as_encoded_bytes(), to)?;
            }
            Node::Bytes(bytes, mode) => {
                let entry = entry.mode(*mode).set_mode_file_type(ModeFileType::Regular);
                finish(&mut out, entry, bytes, to)?;
            }
            Node::File(from, mode) => {
                let bytes = fs::read(from).map_err(LabError::io(from))?;
                let entry = entry.mode(*mode).set_mode_file_type(ModeFileType::Regular);
                finish(&mut out, entry, &bytes, to)?;
            }
        }
    }
    let out = trailer(out).map_err(LabError::io(to))?;
    out.into_inner()
        .map_err(|e| LabError::io(to)(e.into_error()))?;
    Ok(())
}

fn finish(out: &mut impl Write, entry: Builder, bytes: &[u8], to: &Path) -> Result<(), LabError> {
    let size = u32::try_from(bytes.len()).map_err(|_| {
        LabError::io(to)(io::Error::other(
            "a file of 4 GiB or more does not fit into the guest",
        ))
    })?;
    let mut writer = entry.write(out, size);
    writer.write_all(bytes).map_err(LabError::io(to))?;
    writer.finish().map(drop).map_err(LabError::io(to))
}

/// The place that a path of the guest leads to, relative to the guest's root.
fn place(path: &Path) -> PathBuf {
    let mut parts: Vec<&OsStr> = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.push(part),
            Component::ParentDir => drop(parts.pop()),
            _ => {}
        }
    }
    let merged = ["bin", "sbin", "lib", "lib64"].map(OsStr::new);
    if parts.len() > 1 && merged.contains(&parts[0]) {
        parts.insert(0, OsStr::new("usr"));
    }
    parts.into_iter().collect()
}

/// The first line of a script, after `#!`; `None` for anything else.
fn first_line(file: &Path) -> Result<Option<String>, LabError> {
    let mut start = Vec::new();
    let mut opened = File::open(file).map_err(LabError::io(file))?.take(256);
    opened.read_to_end(&mut start).map_err(LabError::io(file))?;
    let line = start.strip_prefix(b"#!").map(|rest| {
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        String::from_utf8_lossy(line).trim().to_string()
    });
    Ok(line)
}

/// The paths in the output of `ldd`; as the error, the name of a library that is not there.
fn libraries_in(text: &str) -> Result<Vec<&str>, String> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        let (name, rest) = line.split_once(" => ").unwrap_or((line, line));
        if rest == "not found" {
            return Err(name.to_string());
        }
        let path = rest.split(" (").next().unwrap_or_default();
        if path.starts_with('/') && rest.contains(" (") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Quotes a word so that the shell takes it as it is.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Image {
        Image {
            nodes: BTreeMap::new(),
            given: BTreeMap::new(),
            can_go_on: false,
            is_system: false,
        }
    }

    #[test]
    fn paths_go_to_their_place_under_usr() {
        for (path, at) in [
            ("/bin/sh", "usr/bin/sh"),
            (
                "/lib/x86_64-linux-gnu/libc.so.6",
                "usr/lib/x86_64-linux-gnu/libc.so.6",
            ),
            (
                "/lib64/ld-linux-x86-64.so.2",
                "usr/lib64/ld-linux-x86-64.so.2",
            ),
            ("/usr/bin/../sbin/nginx", "usr/sbin/nginx"),
            ("/root/x", "root/x"),
        ] {
            assert_eq!(place(Path::new(path)), Path::new(at));
        }
    }

    #[test]
    fn ldd_is_understood() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\
            \tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(
            libraries_in(text).unwrap(),
            [
                "/lib/x86_64-linux-gnu/libz.so.1",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
        assert_eq!(
            libraries_in("\tnot a dynamic executable\n").unwrap(),
            [""; 0]
        );
        assert_eq!(
            libraries_in("\tlibx.so => not found\n").unwrap_err(),
            "libx.so"
        );
    }

    #[test]
    fn the_same_content_gives_the_same_bytes_whenever_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let build = |name: &str, reverse: bool| {
            let source = folder.path().join(name);
            fs::create_dir(&source).unwrap();
            let mut files = ["a", "b", "c"];
            if reverse {
                files.reverse();
            }
            for file in files {
                fs::write(source.join(file), file).unwrap();
            }
            let mut image = empty();
            image.add(&format!("{}:/data", source.display())).unwrap();
            let out = folder.path().join(format!("{name}.cpio"));
            image.write(&out).unwrap();
            fs::read(out).unwrap()
        };
        let first = build("one", false);
        assert_eq!(first, build("two", true));
        let mut names = Vec::new();
        let mut rest = &first[..];
        loop {
            let reader = cpio::NewcReader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            assert_eq!((reader.entry().mtime(), reader.entry().uid()), (0, 0));
            names.push(reader.entry().name().to_string());
            rest = reader.finish().unwrap();
        }
        assert_eq!(names, ["data", "data/a", "data/b", "data/c"]);
    }

    #[test]
    fn a_program_brings_its_libraries_and_a_script_its_interpreter() {
        let mut image = empty();
        image.add("bash").unwrap();
        let libc = image.nodes.keys().any(|path| path.ends_with("libc.so.6"));
        assert!(libc, "{:?}", image.nodes.keys());

        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, "#!/usr/bin/env bash\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let mut image = empty();
        image.add(script.to_str().unwrap()).unwrap();
        assert!(image.nodes.contains_key(Path::new("root/script")));
        assert!(image.nodes.keys().any(|path| path.ends_with("bin/bash")));
    }

    #[test]
    fn what_is_not_there_is_the_users_mistake() {
        for what in ["/no/such/file", "no-such-program", "/bin/sh:relative"] {
            let error = empty().add(what).unwrap_err();
            assert!(
                matches!(error, LabError::GuestFile { .. } | LabError::Io { .. }),
                "{error}"
            );
        }
    }

    #[test]
    fn words_are_quoted_for_the_shell() {
        let output = Command::new("sh")
            .arg("-c")
            .arg(format!("printf %s {}", quote("it's $HOME `x` \"y\" \\")))
            .output()
            .unwrap();
        assert_eq!(output.stdout, b"it's $HOME `x` \"y\" \\");
    }
}
