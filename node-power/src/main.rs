//! `andreas-node-power`: flags, wiring, leader election, shutdown.

use std::sync::Arc;
use std::time::Duration;

use andreas_api::NodePower;
use andreas_node_power::USER_AGENT;
use andreas_node_power::args::Args;
use andreas_node_power::cluster::Cluster;
use andreas_node_power::metrics::Metrics;
use andreas_node_power::reconcile::Reconciler;
use andreas_node_power::secrets::Secrets;
use andreas_node_power::world::{NodeMark, World};
use andreas_runtime::health::Health;
use andreas_runtime::lease::{Held, KubeLeases, LeaseConfig, campaign};
use andreas_runtime::watch::{WatchConfig, WatchMetrics, Watcher, feed};
use andreas_runtime::{admin, client, shutdown, telemetry};
use clap::Parser;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    telemetry::init(&args.telemetry)?;
    let stop = shutdown::on_signals()?;
    let client = client::connect(&args.client, USER_AGENT).await?;
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let watches = WatchMetrics::register(&mut registry);
    let health = Health::new();
    let cached = [health.register("NodePowers"), health.register("Nodes")];
    let admin_end = CancellationToken::new();
    let bound = admin::bind(&args.admin)?;
    let served = bound.serve(Arc::new(registry), health.clone(), client.clone(), admin_end.clone());
    let admin = tokio::spawn(served);

    let world = Arc::new(Mutex::new(World::default()));
    let powers: Watcher<NodePower> = Watcher::new(client.clone(), WatchConfig::default(), &watches);
    tokio::spawn(feed(powers, Arc::clone(&world), cached[0].clone(), stop.clone()));
    let nodes: Watcher<NodeMark> = Watcher::new(client.clone(), WatchConfig::default(), &watches);
    tokio::spawn(feed(nodes, Arc::clone(&world), cached[1].clone(), stop.clone()));

    let lease_end = CancellationToken::new();
    let store = KubeLeases::new(client.clone(), args.namespace.as_str(), args.lease.as_str());
    let won = tokio::select! {
        won = campaign(store, LeaseConfig::new(args.identity.as_str()), lease_end.clone()) => won?,
        () = stop.cancelled() => None,
    };
    let mut lost = false;
    if let Some(Held { leadership, renewing, .. }) = won {
        let cluster = Cluster::new(client.clone(), leadership.clone());
        let secrets = Secrets::new(client, &args.namespace);
        let (settings, operator) = (args.settings(), args.operator());
        let reconciler = Reconciler::new(cluster, secrets, settings, operator, metrics, world);
        let end = CancellationToken::new();
        let heartbeat = health.heartbeat("reconciler", Duration::from_secs(180));
        let working = tokio::spawn(Arc::new(reconciler).run(heartbeat, end.clone()));
        lost = tokio::select! {
            () = stop.cancelled() => false,
            () = leadership.lost() => true,
        };
        end.cancel();
        // A request to a BMC may take its time; what it came to is read again.
        let _ = tokio::time::timeout(Duration::from_secs(8), working).await;
        lease_end.cancel();
        let _ = tokio::time::timeout(Duration::from_secs(5), renewing).await;
    }
    admin_end.cancel();
    admin.await??;
    anyhow::ensure!(!lost, "leadership is lost");
    Ok(())
}
