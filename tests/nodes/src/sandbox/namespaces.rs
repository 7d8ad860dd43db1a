//! New namespaces for the calling thread.

use rustix::thread::UnshareFlags;

/// `unshare(2)` for flags that leave the file table alone, the only ones with a safety condition.
#[expect(deprecated, reason = "the replacement is unsafe on account of CLONE_FILES, which is never passed")]
pub(super) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(flags.difference(UnshareFlags::FILES))
}
