//! What a process of the agent gives up before it starts threads.

use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

/// Leaves the network: containers of one pod share it, and the setter needs none. Says whether it could.
///
/// Call it before any other thread exists: namespaces belong to threads.
#[expect(deprecated, reason = "the replacement is unsafe on account of CLONE_FILES, which is not passed")]
pub fn leave_network() -> bool {
    match rustix::thread::unshare(UnshareFlags::NEWNET) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "the network cannot be left");
            false
        }
    }
}

/// Keeps only `keep` of the capabilities, for good, and allows no new ones. Says whether it could.
///
/// Call it before any other thread exists: capabilities belong to threads.
pub fn keep_only(keep: CapabilitySet) -> bool {
    let narrowed = rustix::thread::set_no_new_privs(true)
        .and_then(|()| rustix::thread::capabilities(None))
        .and_then(|has| {
            let kept = has.permitted & keep;
            let sets =
                CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
            rustix::thread::set_capabilities(None, sets)
        });
    if let Err(error) = &narrowed {
        tracing::warn!(%error, "capabilities cannot be dropped");
    }
    narrowed.is_ok()
}
