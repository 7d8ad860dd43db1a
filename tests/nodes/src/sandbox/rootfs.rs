//! A container's root: an empty tmpfs, the machine's programs and libraries read-only, and the volumes.
//!
//! Nothing is written outside the tmpfs and the volumes, so an ordinary user can mount anywhere, and nothing is left
//! behind.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use anyhow::Context as _;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};

use super::spec::{ContainerSpec, Mount};

/// Where the machine's root stays visible until the container's program starts.
const OLD: &str = "/.pretend/old";
const PROGRAMS: &str = "/.pretend/bin";
const SYSTEM: [&str; 9] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt", "nix"];
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const ETC: [&str; 12] = [
    "passwd",
    "group",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ssl",
    "pki",
    "ca-certificates",
    "alternatives",
    "localtime",
    "services",
    "protocols",
];
const FOLDERS: [&str; 8] = ["run", "var/tmp", "var/lib", "var/log", "root", "home", "mnt", "srv"];

/// Moves this process into the container's root.
pub(super) fn enter(spec: &ContainerSpec) -> anyhow::Result<()> {
    let root = &spec.root;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("private mounts")?;
    mount("tmpfs", root, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=0755")
        .context("tmpfs for the root")?;
    let old = root.join(OLD.trim_start_matches('/'));
    fs::create_dir_all(&old)?;
    rustix::process::pivot_root(root, &old).context("pivot_root")?;
    std::env::set_current_dir("/")?;

    system()?;
    devices()?;
    etc(spec)?;
    for folder in FOLDERS {
        fs::create_dir_all(Path::new("/").join(folder))?;
    }
    symlink("../run", "/var/run")?;
    for folder in ["/tmp", "/var/tmp"] {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o1777))?;
    }
    // First: a program below one of them would make its folders.
    for path in &spec.host_paths {
        bind_from_host(path).with_context(|| path.display().to_string())?;
    }
    programs(spec)?;
    let mut mounts: Vec<&Mount> = spec.mounts.iter().collect();
    mounts.sort_by_key(|mount| mount.target.components().count());
    for mount in mounts {
        volume(mount).with_context(|| format!("mounting {}", mount.target.display()))?;
    }
    fs::create_dir_all(&spec.working_dir)
        .with_context(|| format!("working folder {}", spec.working_dir.display()))?;
    unmount(OLD, UnmountFlags::DETACH).context("leaving the machine's root")?;
    Ok(())
}

/// A path of the machine while its root is still visible.
fn of_machine(path: &Path) -> PathBuf {
    let mut at = PathBuf::from(OLD);
    at.extend(path.components().filter(|part| matches!(part, Component::Normal(_))));
    at
}

fn system() -> anyhow::Result<()> {
    for name in SYSTEM {
        let (source, target) = (of_machine(Path::new(name)), Path::new("/").join(name));
        match fs::symlink_metadata(&source) {
            Ok(meta) if meta.is_symlink() => symlink(fs::read_link(&source)?, &target)?,
            Ok(meta) if meta.is_dir() => bind(&source, &target, true).with_context(|| format!("/{name}"))?,
            _ => {}
        }
    }
    for name in ["proc", "sys"] {
        bind(&of_machine(Path::new(name)), &Path::new("/").join(name), false)
            .with_context(|| format!("/{name}"))?;
    }
    Ok(())
}

fn devices() -> anyhow::Result<()> {
    fs::create_dir_all("/dev/shm")?;
    fs::set_permissions("/dev/shm", fs::Permissions::from_mode(0o1777))?;
    for name in DEVICES {
        let path = Path::new("/dev").join(name);
        if of_machine(&path).exists() {
            bind(&of_machine(&path), &path, false).with_context(|| path.display().to_string())?;
        }
    }
    symlink("/proc/self/fd", "/dev/fd")?;
    for (number, name) in ["stdin", "stdout", "stderr"].iter().enumerate() {
        symlink(format!("/proc/self/fd/{number}"), Path::new("/dev").join(name))?;
    }
    Ok(())
}

/// `/etc`: the machine's users and certificates, and our `hosts`, `hostname`, `resolv.conf` through a folder, so that
/// a file replaced by rename is seen.
fn etc(spec: &ContainerSpec) -> anyhow::Result<()> {
    for name in ETC {
        let path = Path::new("/etc").join(name);
        if of_machine(&path).exists() {
            bind(&of_machine(&path), &path, true).with_context(|| path.display().to_string())?;
        }
    }
    bind(&of_machine(&spec.etc), Path::new("/.pretend/etc"), true).context("/.pretend/etc")?;
    fs::create_dir_all("/etc")?;
    for name in ["hosts", "hostname", "resolv.conf"] {
        symlink(Path::new("/.pretend/etc").join(name), Path::new("/etc").join(name))?;
    }
    fs::write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")?;
    Ok(())
}

/// Programs by name on the search path, and the one to run at its own path when the system does not show it.
fn programs(spec: &ContainerSpec) -> anyhow::Result<()> {
    for program in &spec.programs {
        let name = program.file_name().context("a program without a file name")?;
        bind(&of_machine(program), &Path::new(PROGRAMS).join(name), true)
            .with_context(|| program.display().to_string())?;
    }
    if let Some(first) = spec.argv.first().map(Path::new)
        && first.is_absolute()
        && !first.exists()
        && of_machine(first).is_file()
    {
        bind_from_host(first)?;
    }
    Ok(())
}

/// Bind-mounts a host path read-only at the same path, unless it exists or the host lacks it.
fn bind_from_host(path: &Path) -> io::Result<()> {
    if path.exists() || !of_machine(path).exists() { Ok(()) } else { bind(&of_machine(path), path, true) }
}

fn volume(mount: &Mount) -> io::Result<()> {
    bind(&of_machine(&mount.source), &mount.target, mount.read_only)
}

fn bind(source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    if fs::metadata(source)?.is_dir() {
        fs::create_dir_all(target)?;
    } else if !target.exists() {
        fs::create_dir_all(target.parent().unwrap_or(Path::new("/")))?;
        File::create(target)?;
    }
    mount_bind_recursive(source, target)?;
    if read_only {
        // Refused in a user namespace when the mount below carries locked flags; there the files are not ours anyway.
        let _ = mount_remount(target, MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID, c"");
    }
    Ok(())
}
