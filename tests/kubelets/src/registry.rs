//! A registry of images beside the nodes, as a cluster without a way to the internet has one.

use std::time::Duration;

use andreas_testbed::wait::until;
use andreas_testbed::{Process, ProcessSpec, Testbed, built};
use anyhow::{Context as _, Result};
use serde_json::json;
use tokio::net::TcpStream;

use crate::network::Network;

/// How long it may take to answer on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Its port.
const PORT: u16 = 5000;

/// A running registry (distribution, plain HTTP, no accounts); dropped, it ends.
pub struct Registry {
    _process: Process,
}

impl Registry {
    /// Starts it, with nothing in it.
    ///
    /// # Errors
    /// When the program cannot be built or does not answer in time.
    pub async fn start(testbed: &Testbed) -> Result<Self> {
        let folder = testbed.data_dir().join("registry");
        std::fs::create_dir_all(&folder)?;
        let config = json!({
            "version": 0.1,
            "log": {"level": "warn"},
            "storage": {"filesystem": {"rootdirectory": folder.join("blobs")}},
            "http": {"addr": Self::address()},
        });
        let file = folder.join("config.json");
        std::fs::write(&file, format!("{config:#}\n"))?;
        let program = built("registry").await?.join("registry");
        let process = testbed.spawn(ProcessSpec::new("registry", program).arg("serve").arg(&file))?;
        let answers = async || Ok(TcpStream::connect(Self::address()).await.is_ok());
        let waited = until("the registry answers", LIMIT, answers).await;
        waited.with_context(|| process.log_tail(20))?;
        Ok(Self { _process: process })
    }

    /// Host and port, which images' names begin with.
    pub fn address() -> String {
        format!("{}:{PORT}", Network::ADDRESS)
    }
}
