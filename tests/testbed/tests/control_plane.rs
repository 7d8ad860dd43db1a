//! The test bed itself: it starts, serves, survives what is done to it, and leaves nothing behind.

use andreas_testbed::{Component, Testbed};

#[tokio::test(flavor = "multi_thread")]
async fn boots() {
    let began = std::time::Instant::now();
    let testbed = Testbed::builder().start().await.unwrap();
    eprintln!("started in {:?}", began.elapsed());
    let version = testbed.kubectl(["version"]).await.unwrap().checked().unwrap();
    eprintln!("{}", version.stdout);
    eprintln!("{:#?}", testbed.status());
    testbed.kill(Component::ApiServer).unwrap();
    let began = std::time::Instant::now();
    testbed.restart(Component::ApiServer).await.unwrap();
    eprintln!("restarted in {:?}", began.elapsed());
    let n = testbed.audit_log().unwrap().map(Result::unwrap).count();
    eprintln!("{n} audit events");
    let began = std::time::Instant::now();
    drop(testbed);
    eprintln!("dropped in {:?}", began.elapsed());
}
