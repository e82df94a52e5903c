//! A kernel: how the user names it, and its release, configuration and modules.

use crate::error::LabError;
use crate::known::{KNOWN, Known};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

/// A kernel as the user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelChoice {
    /// `sched_ext`, `6.12` or `6.1`, fetched from Debian.
    Debian(Named),
    /// The path of a bzImage.
    File(PathBuf),
}

/// One of the lab's kernels by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named(pub(crate) Known);

impl KernelChoice {
    /// Debian's newest kernel with sched_ext.
    pub const SCHED_EXT: KernelChoice = KernelChoice::Debian(Named(KNOWN[0]));

    /// Every kernel that can be fetched.
    pub fn all() -> Vec<KernelChoice> {
        KNOWN
            .map(|known| KernelChoice::Debian(Named(known)))
            .to_vec()
    }
}

impl FromStr for KernelChoice {
    type Err = LabError;

    fn from_str(text: &str) -> Result<KernelChoice, LabError> {
        if text.contains('/') {
            return Ok(KernelChoice::File(text.into()));
        }
        let known = KNOWN.iter().find(|known| known.name == text);
        known
            .map(|known| KernelChoice::Debian(Named(*known)))
            .ok_or_else(|| LabError::NoSuchKernel(text.to_string()))
    }
}

/// A kernel that is on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
    /// The bzImage.
    pub image: PathBuf,
    /// The kernel's configuration, where known; libbpf looks for it in the guest.
    pub config: Option<PathBuf>,
    /// The kernel's modules (the folder `RELEASE` with `kernel/` in it), where known.
    pub modules: Option<PathBuf>,
}

impl Kernel {
    /// A kernel by its file; its configuration and modules are looked for where distributions and kernel
    /// builds put them.
    ///
    /// # Errors
    /// [`LabError::NotAKernel`] where the file is no bzImage; [`LabError::Io`] where it cannot be read.
    pub fn from_file(image: &Path) -> Result<Kernel, LabError> {
        let release = release(image)?;
        let beside = image.parent().unwrap_or(Path::new("."));
        let root = beside.parent().unwrap_or(Path::new("."));
        let config = [
            beside.join(format!("config-{release}")),
            beside.join("config"),
            // arch/x86/boot/bzImage of a kernel's build.
            beside.join("../../../.config"),
        ];
        let modules = [
            beside.to_path_buf(),
            root.join(format!("usr/lib/modules/{release}")),
            root.join(format!("lib/modules/{release}")),
        ];
        Ok(Kernel {
            config: config.into_iter().find(|file| file.is_file()),
            modules: modules.into_iter().find(|dir| dir.join("kernel").is_dir()),
            image: std::path::absolute(image).map_err(LabError::io(image))?,
            release,
        })
    }

    /// The kernel among unpacked packages.
    pub(crate) fn from_root(root: &Path, package: &str) -> Result<Kernel, LabError> {
        let layout = |what| LabError::Layout {
            package: package.to_string(),
            what,
        };
        let mut images = Vec::new();
        for folder in [root.join("boot"), root.join("usr/lib/modules")] {
            collect(&folder, &mut images);
        }
        images.sort();
        let image = images.into_iter().next().ok_or_else(|| layout("vmlinuz"))?;
        let kernel = Kernel::from_file(&image)?;
        if kernel.config.is_none() {
            return Err(layout("kernel configuration"));
        }
        Ok(kernel)
    }

    /// Whether an option is built in (`y`); `false` where the kernel's configuration is not known.
    pub fn has(&self, option: &str) -> bool {
        self.option(option).as_deref() == Some("y")
    }

    fn option(&self, option: &str) -> Option<String> {
        let text = fs::read_to_string(self.config.as_ref()?).ok()?;
        let prefix = format!("{option}=");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map(str::to_string)
    }

    /// The timer's frequency in Hz; `None` where the kernel's configuration is not known.
    pub(crate) fn ticks_per_s(&self) -> Option<u64> {
        let hz = self.option("CONFIG_HZ")?.parse().ok()?;
        (hz > 0).then_some(hz)
    }

    /// Checks that the kernel can load sched_ext schedulers.
    ///
    /// # Errors
    /// [`LabError::NoSchedExt`] where the kernel's configuration is known and says that it cannot.
    pub fn require_sched_ext(&self) -> Result<(), LabError> {
        if self.config.is_none() || self.has("CONFIG_SCHED_CLASS_EXT") {
            return Ok(());
        }
        Err(LabError::NoSchedExt {
            release: self.release.clone(),
        })
    }

    /// Whether the kernel boots on the virtual clock: releases before 6.12 are not trusted to, as 6.1 hangs
    /// there.
    pub fn runs_on_virtual_clock(&self) -> bool {
        let mut parts = self.release.split(|c: char| !c.is_ascii_digit());
        let mut next = || parts.next().and_then(|part| part.parse::<u32>().ok());
        match (next(), next()) {
            (Some(major), Some(minor)) => (major, minor) >= (6, 12),
            _ => true,
        }
    }

    /// Modules and those that they depend on, by file name, in the order to load them, decompressed. Modules
    /// that are built in are left out, and so are all where the kernel's modules are not known.
    pub(crate) fn modules(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>, LabError> {
        let Some(dir) = &self.modules else {
            return Ok(Vec::new());
        };
        let order = dir.join("modules.order");
        let order = fs::read_to_string(&order).map_err(LabError::io(&order))?;
        let mut modules = Vec::new();
        for name in names {
            add_module(dir, &order, name, &mut modules)?;
        }
        Ok(modules)
    }
}

/// Adds a module to the list, after those that it depends on.
fn add_module(
    dir: &Path,
    order: &str,
    name: &str,
    modules: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), LabError> {
    let plain = name.replace('-', "_");
    let is_it = |line: &&str| {
        let file = line.rsplit('/').next().unwrap_or_default();
        file.split('.').next().map(|stem| stem.replace('-', "_")) == Some(plain.clone())
    };
    let Some(line) = order.lines().find(is_it) else {
        return Ok(()); // built in
    };
    let stem = line.strip_suffix(".ko").unwrap_or(line);
    let file = dir.join(format!("{stem}.ko"));
    let name = file.file_name().unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    if modules.iter().any(|(known, _)| *known == name) {
        return Ok(());
    }
    let bytes = read_module(&file)?;
    for needed in module_depends(&bytes) {
        add_module(dir, order, &needed, modules)?;
    }
    modules.push((name, bytes));
    Ok(())
}

/// A module's bytes; Debian compresses them.
fn read_module(file: &Path) -> Result<Vec<u8>, LabError> {
    let packed = file.with_extension("ko.xz");
    if !packed.is_file() {
        return fs::read(file).map_err(LabError::io(file));
    }
    let mut xz = Command::new("xz");
    let output = xz.arg("-dc").arg(&packed).output();
    let output = output.map_err(|source| LabError::Tool {
        program: "xz".into(),
        package: "xz-utils",
        source,
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(LabError::Program {
        program: packed,
        problem: String::from_utf8_lossy(&output.stderr).trim().to_string(),
    })
}

/// The modules that a module depends on: the string `depends=A,B` in its section `.modinfo`.
fn module_depends(module: &[u8]) -> Vec<String> {
    let marker = b"\0depends=";
    let found = module.windows(marker.len()).position(|at| at == marker);
    let Some(start) = found.map(|at| at + marker.len()) else {
        return Vec::new();
    };
    let value = module[start..].split(|byte| *byte == 0).next();
    let value = String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
    let names = value.split(',').filter(|name| !name.is_empty());
    names.map(str::to_string).collect()
}

/// Adds the kernels in a folder and in its folders.
fn collect(folder: &Path, images: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("vmlinuz") && path.is_file() {
            images.push(path);
        } else if path.join("vmlinuz").is_file() {
            images.push(path.join("vmlinuz"));
        }
    }
}

/// The release in a bzImage's header: Documentation/arch/x86/boot.rst, `kernel_version` at 0x20e.
fn release(image: &Path) -> Result<String, LabError> {
    let mut file = fs::File::open(image).map_err(LabError::io(image))?;
    let mut header = [0; 0x210];
    let not = || LabError::NotAKernel(image.to_path_buf());
    file.read_exact(&mut header).map_err(|_| not())?;
    if &header[0x202..0x206] != b"HdrS" {
        return Err(not());
    }
    let offset = u64::from(u16::from_le_bytes([header[0x20e], header[0x20f]])) + 0x200;
    let mut text = [0; 128];
    file.seek(SeekFrom::Start(offset))
        .map_err(LabError::io(image))?;
    file.read_exact(&mut text).map_err(|_| not())?;
    let text = String::from_utf8_lossy(&text);
    let release = text.split([' ', '\0']).next().unwrap_or_default();
    if release.is_empty() {
        return Err(not());
    }
    Ok(release.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_told_apart() {
        assert_eq!(
            "sched_ext".parse::<KernelChoice>().unwrap(),
            KernelChoice::SCHED_EXT
        );
        assert_eq!(
            "./bzImage".parse::<KernelChoice>().unwrap(),
            KernelChoice::File("./bzImage".into())
        );
        let error = "5.15".parse::<KernelChoice>().unwrap_err();
        assert!(
            error.to_string().contains("sched_ext, 6.12, 6.1"),
            "{error}"
        );
        assert!(error.is_users());
    }

    #[test]
    fn a_file_that_is_no_kernel_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vmlinuz");
        fs::write(&file, vec![0; 4096]).unwrap();
        assert!(matches!(
            Kernel::from_file(&file),
            Err(LabError::NotAKernel(_))
        ));
        fs::write(&file, "short").unwrap();
        assert!(matches!(
            Kernel::from_file(&file),
            Err(LabError::NotAKernel(_))
        ));
    }

    #[test]
    fn a_kernels_file_says_its_release() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vmlinuz-x");
        let mut bytes = vec![0; 0x1000];
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&0x300u16.to_le_bytes());
        let words = b"7.2.1+deb14-cloud-amd64 (build@host) #1\0";
        bytes[0x500..0x500 + words.len()].copy_from_slice(words);
        fs::write(&file, bytes).unwrap();
        let kernel = Kernel::from_file(&file).unwrap();
        assert_eq!(kernel.release, "7.2.1+deb14-cloud-amd64");
        assert_eq!((&kernel.config, kernel.ticks_per_s()), (&None, None));
        assert!(kernel.runs_on_virtual_clock());
        kernel.require_sched_ext().unwrap();
        let config = folder.path().join(format!("config-{}", kernel.release));
        fs::write(
            config,
            "# CONFIG_SCHED_CLASS_EXT is not set\nCONFIG_SMP=y\n# CONFIG_HZ_100 is not set\nCONFIG_HZ_250=y\nCONFIG_HZ=250\n",
        )
        .unwrap();
        let kernel = Kernel::from_file(&file).unwrap();
        assert!(kernel.has("CONFIG_SMP"));
        assert_eq!(kernel.ticks_per_s(), Some(250));
        assert!(matches!(
            kernel.require_sched_ext(),
            Err(LabError::NoSchedExt { .. })
        ));
    }

    #[test]
    fn modules_say_what_they_depend_on() {
        let module = b"ELF\0license=GPL\0depends=virtio,virtio_ring\0name=virtio_console\0";
        assert_eq!(module_depends(module), ["virtio", "virtio_ring"]);
        assert!(module_depends(b"\0depends=\0x").is_empty());
        assert!(module_depends(b"").is_empty());
    }
}
