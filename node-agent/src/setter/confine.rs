//! Privileges that a process drops before it starts threads.

use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

/// Moves to an empty network namespace: containers of one pod share the network, and the setter needs none.
/// Returns whether it succeeded.
///
/// Call it before any other thread exists: namespaces are per thread.
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

/// Drops all capabilities but `keep` permanently and forbids new ones. Returns whether it succeeded.
///
/// Call it before any other thread exists: capabilities are per thread.
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
