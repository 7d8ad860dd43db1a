//! Unix socket server of the setter.

use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, Semaphore};

use super::applier::Applier;
use crate::setting::{MAX_LINE, SettingsRequest};

/// Maximum connections: the agent process's, plus one after its restart while the old one still lingers.
const CONNECTIONS: usize = 4;

/// Listens at `path`, replacing an old socket; only the same user may connect.
pub(super) fn listen(path: &Path) -> std::io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // A socket alone: a wrong path must not cost a file.
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => return Err(std::io::Error::other(format!("{}: is there, and no socket", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves until the listener fails.
pub(super) async fn serve(
    listener: UnixListener,
    applier: Arc<Mutex<Applier>>,
    ttl: Duration,
) -> std::io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let (stream, _) = listener.accept().await?;
        // The file mode ensures this, except for a socket passed on by another process.
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == own => {}
            _ => {
                tracing::warn!("a connection of another user was refused");
                continue;
            }
        }
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
        let applier = Arc::clone(&applier);
        tokio::spawn(async move {
            if let Err(error) = handle_connection(stream, &applier, ttl).await {
                tracing::warn!(%error, "a connection was closed");
            }
            drop(permit);
        });
    }
}

async fn handle_connection(
    stream: UnixStream,
    applier: &Mutex<Applier>,
    ttl: Duration,
) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut reader).take(MAX_LINE as u64);
        let read = tokio::time::timeout(ttl, limited.read_until(b'\n', &mut line)).await;
        if read.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?? == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            return Err(std::io::Error::other("a line has no end"));
        }
        let request: SettingsRequest = serde_json::from_slice(&line).map_err(std::io::Error::other)?;
        let response = applier.lock().await.apply(&request).await;
        let mut answer = serde_json::to_vec(&response).map_err(std::io::Error::other)?;
        answer.push(b'\n');
        writer.write_all(&answer).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("precious.txt");
        std::fs::write(&path, "kept").expect("written");
        assert!(
            listen(&path)
                .expect_err("no socket")
                .to_string()
                .ends_with("precious.txt: is there, and no socket")
        );
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "kept");
        // An old socket is replaced.
        let socket = folder.path().join("s");
        drop(listen(&socket).expect("the first"));
        listen(&socket).expect("the second");
    }
}
