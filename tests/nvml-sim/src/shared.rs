//! The mapped file and its lock.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::SimError;
use crate::spec::Spec;
use crate::state::{MAGIC, Node};

/// A node's state, shared with every other process that has it open.
pub struct Shared {
    // The mutex keeps the threads of this process apart, the lock on the file the processes.
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    node: NonNull<Node>,
}

// SAFETY: the mapping is reached only through the mutex, and does not depend on the thread.
unsafe impl Send for Inner {}

/// Where the state of a spec lies.
#[must_use]
pub fn state_path(spec: &Path) -> PathBuf {
    let mut path = spec.as_os_str().to_owned();
    path.push(".state");
    path.into()
}

impl Shared {
    /// Opens the state of `spec`; fills it when this is the first to do so.
    ///
    /// # Errors
    /// When the spec is wrong or a file cannot be used.
    pub fn open(spec: &Path) -> Result<Self, SimError> {
        let path = state_path(spec);
        let io = |source: std::io::Error| SimError::Io { path: path.clone(), source };
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|error| io(error.into()))?;
        let length = size_of::<Node>();
        if file.metadata().map_err(io)?.len() < length as u64 {
            file.set_len(length as u64).map_err(io)?;
        }
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is at least this long; nobody shortens it.
        let address = unsafe {
            mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        };
        let address = address.map_err(|error| io(error.into()))?;
        let node =
            NonNull::new(address.cast::<Node>()).ok_or_else(|| io(std::io::ErrorKind::Other.into()))?;
        let shared = Self { inner: Mutex::new(Inner { file, node }) };
        // The lock is still held: flock on the same description is a no-op, its release is at the end of `with`.
        let spec = Spec::read(spec);
        shared.with(|node| {
            if node.magic != MAGIC {
                node.fill(&spec?);
            }
            Ok(())
        })?;
        Ok(shared)
    }

    /// Runs `work` with the node locked against all other threads and processes.
    pub fn with<T>(&self, work: impl FnOnce(&mut Node) -> T) -> T {
        let mut inner = self.inner.lock();
        // A lock that cannot be had leaves only this process's order, which is better than a panic in a caller's C frame.
        let _ = flock(&inner.file, FlockOperation::LockExclusive);
        let node: *mut Node = inner.node.as_ptr();
        // SAFETY: the mapping is page-aligned, as long as a Node and lives as long as `inner`; every byte pattern is a Node; the
        // mutex and the lock on the file make this the only reference.
        let answer = work(unsafe { &mut *node });
        let _ = flock(&mut inner.file, FlockOperation::Unlock);
        answer
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: mapped in `open` with this length, and no reference outlives `with`.
        let _ = unsafe { munmap(self.node.as_ptr().cast(), size_of::<Node>()) };
    }
}
