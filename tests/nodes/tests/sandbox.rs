//! Containers as processes, without a cluster.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use andreas_test_nodes::sandbox::{ContainerSpec, Mount, Sandbox};
use andreas_testbed::wait::{stays, until};
use rustix::process::Signal;

/// Room for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn exe() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_pretend-kubelets"))
}

/// A container that runs a shell script in the sandbox's own network.
fn shell(dir: &Path, name: &str, script: &str) -> PathBuf {
    shell_in(dir, name, None, script)
}

/// A container that runs a shell script, in the network of a pod.
fn shell_in(dir: &Path, name: &str, pod_ip: Option<Ipv4Addr>, script: &str) -> PathBuf {
    let at = dir.join(name);
    for folder in ["root", "etc", "out"] {
        fs::create_dir_all(at.join(folder)).unwrap();
    }
    fs::write(at.join("etc/hosts"), "10.244.0.2 master.gang.team.svc\n").unwrap();
    let spec = ContainerSpec {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into()), ("WHO".into(), name.into())],
        working_dir: "/some/where".into(),
        pod_ip,
        hostname: name.into(),
        root: at.join("root"),
        log: at.join("log"),
        etc: at.join("etc"),
        mounts: vec![Mount {
            source: at.join("out"),
            target: "/var/run/secrets/kubernetes.io/serviceaccount".into(),
            read_only: false,
        }],
        programs: vec![],
        host_paths: vec![],
    };
    fs::write(at.join("spec.json"), serde_json::to_vec(&spec).unwrap()).unwrap();
    at.join("spec.json")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_container_has_its_own_root_name_and_mounts() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::start(&exe()).unwrap();
    runtime().block_on(async {
        let script = "echo $WHO $(cat /proc/sys/kernel/hostname) $(pwd) > /var/run/secrets/kubernetes.io/serviceaccount/said; \
                      grep -c master /etc/hosts; test ! -e /.pretend/old/etc && exit 7";
        let container = sandbox.spawn(shell(dir.path(), "worker-0", script)).await.unwrap();
        assert_eq!(container.ended.await.unwrap().exit_code(), 7);
        let said = fs::read_to_string(dir.path().join("worker-0/out/said")).unwrap();
        assert_eq!(said, "worker-0 worker-0 /some/where\n");
        assert_eq!(fs::read_to_string(dir.path().join("worker-0/log")).unwrap(), "1\n");

        let failed = sandbox.spawn(shell(dir.path(), "gone", "true")).await.unwrap();
        assert_eq!(failed.ended.await.unwrap().exit_code(), 0);
    });
}

#[test]
fn every_pod_has_ports_of_its_own_and_reaches_pods_and_services() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::start(&exe()).unwrap();
    runtime().block_on(async {
        // given two pods that listen on the same port of all their addresses
        let pods: [Ipv4Addr; 2] = ["10.244.0.2", "10.244.3.4"].map(|ip| ip.parse().unwrap());
        let serve = "mkdir -p /srv/$WHO; echo $WHO > /srv/name; exec python3 -m http.server --directory /srv 8080";
        let mut servers = Vec::new();
        for (ip, name) in pods.iter().zip(["one", "two"]) {
            let missing = sandbox.spawn(shell_in(dir.path(), name, Some(*ip), serve)).await;
            assert!(missing.is_err(), "a pod without a network");
            sandbox.add_pod(*ip).await.unwrap();
            sandbox.add_pod(*ip).await.unwrap();
            servers.push(sandbox.spawn(shell_in(dir.path(), name, Some(*ip), serve)).await.unwrap());
        }
        // then they are reached from outside, at their own addresses
        for ip in pods {
            until("it listens", LIMIT, async || Ok(sandbox.connect((ip, 8080).into()).await.is_ok()))
                .await
                .unwrap();
        }
        // and a third one reaches both, a Service, and itself on loopback
        let service = sandbox.listen("10.96.0.1:443".parse().unwrap()).await.unwrap();
        let third: Ipv4Addr = "10.244.0.9".parse().unwrap();
        sandbox.add_pod(third).await.unwrap();
        let ask = "for ip in 10.244.0.2 10.244.3.4; do curl -sf http://$ip:8080/name; done; \
                   curl -s -m 5 telnet://10.96.0.1:443 < /dev/null; curl -s http://127.0.0.1:8080; test $? = 7 && echo alone";
        let client = sandbox.spawn(shell_in(dir.path(), "client", Some(third), ask)).await.unwrap();
        let (stream, _) = service.accept().await.unwrap();
        drop(stream);
        assert_eq!(client.ended.await.unwrap().exit_code(), 0);
        assert_eq!(fs::read_to_string(dir.path().join("client/log")).unwrap(), "one\ntwo\nalone\n");
        // and a network given up goes with its last process
        sandbox.remove_pod(pods[0]).await.unwrap();
        assert!(sandbox.connect((pods[0], 8080).into()).await.is_ok());
        sandbox.signal(servers[0].id, Signal::KILL).await.unwrap();
        (&mut servers[0].ended).await.unwrap();
        until("its network is gone", LIMIT, async || {
            Ok(sandbox.connect((pods[0], 8080).into()).await.is_err())
        })
        .await
        .unwrap();
        assert!(sandbox.connect((pods[1], 8080).into()).await.is_ok());
    });
}

#[test]
fn programs_can_be_run_in_a_container_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::start(&exe()).unwrap();
    runtime().block_on(async {
        let script = "echo here > /tmp/file; sleep 1000";
        let container = sandbox.spawn(shell(dir.path(), "host", script)).await.unwrap();
        let run = async |script: &str, limit: u64| {
            let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
            sandbox.exec(container.id, argv, Duration::from_millis(limit)).await.unwrap().exit_code()
        };
        while run("test -e /tmp/file", 5000).await != 0 {}
        assert_eq!(
            run("test $(cat /tmp/file) = here && test $WHO = host && test $(hostname) = host", 5000).await,
            0
        );
        assert_eq!(run("exit 4", 5000).await, 4);
        assert_eq!(run("sleep 1000", 50).await, 137, "killed at its limit");
        sandbox.signal(container.id, Signal::KILL).await.unwrap();
        assert_eq!(container.ended.await.unwrap().exit_code(), 137);
        assert!(sandbox.exec(container.id, vec!["true".into()], Duration::from_secs(1)).await.is_err());
    });
}

#[test]
fn everything_dies_with_the_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::start(&exe()).unwrap();
    let pid = runtime().block_on(async {
        let script = "trap '' TERM; sleep 1000 & sleep 1000 & wait";
        let container = sandbox.spawn(shell(dir.path(), "deaf", script)).await.unwrap();
        sandbox.signal(container.id, Signal::TERM).await.unwrap();
        let process = PathBuf::from(format!("/proc/{}", container.pid));
        stays("SIGTERM is ignored", Duration::from_millis(200), async || Ok(process.exists())).await.unwrap();
        container.pid
    });
    drop(sandbox);
    // A zombie waits for the machine's init, which may take its time; the process itself is dead.
    let dead = async || {
        let state = fs::read_to_string(format!("/proc/{pid}/stat"));
        Ok(state.map_or(true, |stat| stat.contains(") Z")))
    };
    runtime().block_on(until("the process dies with it", Duration::from_secs(2), dead)).unwrap();
}

#[test]
fn without_capabilities_a_user_namespace_does_as_well() {
    if !rustix::process::geteuid().is_root() {
        return; // then all tests above have shown it
    }
    // Mapping user 0 needs SETFCAP; an ordinary user maps its own number and needs nothing.
    let bare = ["--bounding-set=-all,+setfcap", "--inh-caps=-all", "--no-new-privs"];
    let mut again = Command::new("setpriv");
    again.args(bare).arg(std::env::current_exe().unwrap()).args(["--skip", "without_", "--skip", "where_"]);
    let output = again.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("4 passed"), "{said}");
}

#[test]
fn where_nothing_is_allowed_one_line_says_so_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("nodes.yaml"), "nodes: []").unwrap();
    let script = "echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all \
                  --no-new-privs \"$0\" --config nodes.yaml --kubeconfig none --data-dir data --control socket";
    let mut started = Command::new("unshare");
    started.args(["-Ur", "sh", "-c", script]).arg(exe()).current_dir(dir.path());
    let output = started.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.lines().count() == 1 && said.contains("containers: simulated"), "{said}");
}
