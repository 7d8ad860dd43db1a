//! Starting the pretend kubelets: sandbox first, then threads.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{Containers, Image, NodesConfig};
use crate::control;
use crate::sandbox::Sandbox;
use crate::shared::Shared;

/// The image that stands for the training program where the configuration names no images.
const TRAINER_IMAGE: &str = "andreas.dev/trainer";

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration file.
    pub config: PathBuf,
    /// How to reach the API server.
    pub kubeconfig: PathBuf,
    /// Where claims, logs and pods' folders go.
    pub data_dir: PathBuf,
    /// Where the control socket is made.
    pub control: PathBuf,
}

/// Runs until SIGTERM or SIGINT. Must be called from the main thread before any other exists.
pub fn run(options: Options) -> anyhow::Result<()> {
    let mut config = NodesConfig::read(&options.config)?;
    let exe = std::env::current_exe()?;
    if config.images.is_empty() {
        let program = exe.with_file_name("andreas-trainer");
        config.images.push(Image { image: TRAINER_IMAGE.to_owned(), program, replace_command: false });
    }
    config.images.retain(|image| {
        let there = image.program.is_file();
        if !there {
            tracing::warn!(image = image.image, program = %image.program.display(), "no such program; image left out");
        }
        there
    });
    for image in &mut config.images {
        image.program = image.program.canonicalize()?;
    }
    std::fs::create_dir_all(&options.data_dir).context("data folder")?;
    let data_dir = options.data_dir.canonicalize()?;
    let sandbox = match config.containers {
        Containers::Processes => Some(Sandbox::start(&exe)?),
        Containers::Simulated => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(options, config, data_dir, sandbox))
}

/// The API server's address where the kubeconfig names one.
fn api_server_address(url: &http::Uri) -> Option<SocketAddr> {
    let ip = url.host()?.trim_matches(['[', ']']).parse().ok()?;
    Some(SocketAddr::new(ip, url.port_u16().unwrap_or(443)))
}

async fn serve(
    options: Options,
    config: NodesConfig,
    data_dir: PathBuf,
    sandbox: Option<Sandbox>,
) -> anyhow::Result<()> {
    // Another provider may have been chosen already; then that one serves.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(&options.kubeconfig).context("kubeconfig")?;
    let client = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let api_server = api_server_address(&client.cluster_url);
    let client = kube::Client::try_from(client)?;
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let shared = Shared::new(client, config, data_dir, sandbox, api_server);
    shared.start_hardware().context("simulated GPUs")?;
    let work = async {
        shared.register_nodes().await.context("registering nodes")?;
        tracing::info!(nodes = shared.nodes.len(), "nodes registered");
        tokio::spawn(Arc::clone(&shared).follow());
        control::serve(Arc::clone(&shared), &options.control).await.context("control socket")
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        _ = term.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    let _ = std::fs::remove_file(&options.control);
    outcome
}
