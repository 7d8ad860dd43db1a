//! Carries connections from addresses inside (Services, forwards) to where they lead, and from the machine to pods.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::cluster::Target;
use crate::sandbox::{LOCAL_RANGES, POD_RANGE, Sandbox, SandboxError};
use crate::shared::Shared;

/// The listeners that are open.
#[derive(Default)]
pub(crate) struct Forwarder {
    open: HashMap<SocketAddr, JoinHandle<()>>,
}

impl Forwarder {
    /// Opens and closes listeners until they are those of the cluster.
    pub async fn reconcile(&mut self, shared: &Arc<Shared>, sandbox: &Arc<Sandbox>) {
        let wanted = shared.cluster.lock().listeners();
        self.open.retain(|address, task| {
            let keep = wanted.contains_key(address);
            if !keep {
                task.abort();
            }
            keep
        });
        for address in wanted.into_keys() {
            if self.open.contains_key(&address) {
                continue;
            }
            let listening = if is_inside(address) {
                sandbox.listen(address).await
            } else {
                // The other way round: an address of the machine that leads to a pod.
                TcpListener::bind(address).await.map_err(SandboxError::from)
            };
            match listening {
                Ok(listener) => {
                    let task = serve(listener, address, Arc::clone(shared), Arc::clone(sandbox));
                    self.open.insert(address, tokio::spawn(task));
                }
                // The address may be held by a listener just aborted; the next change or tick tries again.
                Err(error) => tracing::warn!(%address, %error, "no listener"),
            }
        }
    }
}

/// Where an address leads is asked anew for every connection, so that a forward may be moved at any time.
async fn serve(listener: TcpListener, address: SocketAddr, shared: Arc<Shared>, sandbox: Arc<Sandbox>) {
    let turn = AtomicUsize::new(0);
    loop {
        let Ok((mut inside, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let target = shared.cluster.lock().listeners().remove(&address);
        let to = match target {
            None => None,
            Some(Target::Machine(address)) => Some(address),
            Some(Target::Service { namespace, name, port }) => {
                let all = shared.cluster.lock().endpoints(&namespace, &name, &port);
                all.get(turn.fetch_add(1, Ordering::Relaxed) % all.len().max(1)).copied()
            }
        };
        let Some(to) = to else { continue }; // nobody serves: the connection is closed
        let sandbox = Arc::clone(&sandbox);
        tokio::spawn(async move {
            match connect(&sandbox, to).await {
                Ok(mut outside) => {
                    let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
                }
                Err(error) => tracing::debug!(%to, %error, "forward"),
            }
        });
    }
}

/// Pods are inside; everything else is on the machine.
async fn connect(sandbox: &Sandbox, to: SocketAddr) -> Result<TcpStream, SandboxError> {
    if is_inside(to) { sandbox.connect(to).await } else { Ok(TcpStream::connect(to).await?) }
}

fn is_inside(address: SocketAddr) -> bool {
    let SocketAddr::V4(address) = address else { return false };
    let ip = u32::from(*address.ip());
    LOCAL_RANGES
        .iter()
        .chain([&POD_RANGE])
        .any(|(network, bits)| (ip ^ u32::from_be_bytes(*network)) >> (32 - u32::from(*bits)) == 0)
}
