//! The page of `kubectl andreas ui` in a real browser, on a cluster of 1,000 jobs and 200 nodes.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod browser;
mod fixture;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use browser::Browser;

/// The command, and the address that it prints.
struct Ui {
    process: Child,
    address: String,
}

impl Ui {
    fn start(server: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-andreas"));
        command.args([
            "ui",
            "-n",
            "team-a",
            "--server",
            server,
            "--token",
            fixture::TOKEN,
            "--request-timeout",
            "20s",
        ]);
        command.env("KUBECONFIG", "/dev/null").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let mut address = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self { process, address: address.trim().to_owned() }
    }

    /// Ends it as Ctrl-C does; its exit code.
    fn interrupt(&mut self) -> Option<i32> {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        self.process.wait().unwrap().code()
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_person_finds_a_job_has_it_explained_and_asks_what_would_help() {
    let (server, cluster) = fixture::serve();
    let mut ui = Ui::start(&server);
    assert!(ui.address.starts_with("http://127.0.0.1:") && ui.address.contains("/#"), "{}", ui.address);
    let mut page = Browser::start();
    page.open(&ui.address);
    page.until("document.querySelectorAll('#joblist .item:not([hidden])').length > 10");
    let shown = page.value("performance.now()").as_f64().unwrap();
    let paint = page.value("performance.getEntriesByName('first-contentful-paint')[0]?.startTime");
    println!("first paint after {paint} ms, 1,000 jobs shown after {shown:.0} ms");
    // Rows out of sight are no elements.
    let rows = page.value("document.querySelectorAll('#joblist .item').length").as_i64().unwrap();
    assert!(rows < 60, "{rows} rows");
    assert_eq!(page.value("document.querySelector('#joblist').getAttribute('aria-rowcount')"), "1000");
    assert_eq!(page.value("location.hash"), "", "the secret is out of the address");
    // A frame of a fast scroll, drawn and laid out.
    let frames = page.value(
        "new Promise(done => { const list = document.querySelector('#joblist'), times = []; let n = 0; const step = () => { const begin = \
         performance.now(); list.scrollTop = (n * 997) % list.scrollHeight; list.dispatchEvent(new Event('scroll')); list.offsetHeight; \
         times.push(performance.now() - begin); if (++n < 100) requestAnimationFrame(step); else { list.scrollTop = 0; \
         done(times.sort((a, b) => a - b)[94]); } }; step(); })",
    );
    println!("a frame of a fast scroll: 95 % within {:.1} ms", frames.as_f64().unwrap());
    page.until("document.querySelector('#joblist .item .past')");
    page.screenshot("jobs-light");
    page.prefer("dark");
    page.screenshot("jobs-dark");
    page.prefer("light");

    // By keys: filter, go down, open.
    page.key("/");
    page.type_text("mixtral-base");
    page.until("document.querySelector('#joblist').getAttribute('aria-rowcount') < 100");
    page.key("Enter");
    page.key("j");
    page.key("Enter");
    page.until("document.querySelector('#detail h3')");
    let text = page.value("document.querySelector('#detail').innerText");
    let text = text.as_str().unwrap();
    for part in [
        "mixtral-base-",
        "In the way",
        "vit-base-0005",
        "Lateness",
        "EUR",
        "no: nodes",
        "from 2 GPUs on",
        "saves 0.12 EUR",
        "Most GPUs",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    page.key("Escape");
    page.until("document.querySelector('#detail').hidden");
    page.key("Escape");
    page.until("document.querySelector('#joblist').getAttribute('aria-rowcount') == 1000");

    // By the mouse: a click explains, and the form shows before and after.
    page.click("#joblist [aria-rowindex='3']");
    page.until("document.querySelector('#detail form')");
    page.screenshot("explain-light");
    page.prefer("dark");
    page.screenshot("explain-dark");
    page.prefer("light");
    page.value("document.querySelector('#detail [name=weight]').value = 400");
    page.click("#detail form .primary");
    page.until("document.querySelector('#detail .compare')");
    let text = page.value("document.querySelector('#detail').innerText");
    let text = text.as_str().unwrap();
    for part in [
        "Before",
        "After",
        "whose end moves",
        "3 jobs of other namespaces end later, by 12m00s",
        "saves 0.19 EUR",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    page.screenshot("whatif-light");

    // The cluster.
    page.key("Escape");
    page.value("document.activeElement.blur()");
    page.key("2");
    page.until("document.querySelector('#power .chart svg')");
    let text = page.value("document.querySelector('#power').innerText").as_str().unwrap().to_owned();
    assert!(
        text.contains("431.0 kW") && text.contains("EUR") && text.contains("within the budget"),
        "{text}"
    );
    page.screenshot("power-light");
    page.prefer("dark");
    page.screenshot("power-dark");
    page.prefer("light");
    page.key("3");
    page.until("document.querySelector('#nodelist .item .g')");
    let text = page.value("document.querySelector('#nodesummary').innerText");
    assert!(text.as_str().unwrap().starts_with("1600 GPUs on 200 nodes: "), "{text}");
    assert_eq!(page.value("document.querySelector('#alert').hidden"), true);
    page.screenshot("nodes-light");
    page.prefer("dark");
    page.screenshot("nodes-dark");
    page.prefer("light");
    page.click("#nodelist .item");
    page.until("document.querySelector('#detail table')");
    page.key("1");
    page.key("?");
    page.until("document.querySelector('#help').open");
    page.screenshot("keys-light");
    page.key("Escape");
    assert!(page.console.is_empty(), "{:?}", page.console);

    // What is wrong is said; the figures stay, and say how old they are.
    cluster.forbids.store(true, Ordering::Relaxed);
    page.until("document.querySelector('#alert b')");
    let text = page.value("document.querySelector('#alert').innerText");
    let text = text.as_str().unwrap();
    for part in [
        "A right is missing",
        "list trainingjobs.andreas.dev in namespace team-a",
        "kubectl auth can-i list",
        "ClusterRole view",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(page.value("document.querySelector('#joblist').getAttribute('aria-rowcount')"), "1000");
    page.until("document.querySelector('#state').innerText.includes('figures are ')");
    page.screenshot("refused-light");
    cluster.forbids.store(false, Ordering::Relaxed);
    page.until("document.querySelector('#alert').hidden");
    cluster.is_away.store(true, Ordering::Relaxed);
    page.until("document.querySelector('#alert').innerText.includes('The cluster cannot be asked')");
    cluster.is_away.store(false, Ordering::Relaxed);
    page.until("document.querySelector('#alert').hidden");

    assert_eq!(ui.interrupt(), Some(0), "Ctrl-C is how it ends");
    page.until("document.querySelector('#alert').innerText.includes('The command has ended')");
}

#[test]
fn a_page_without_the_secret_shows_no_figure_and_asks_the_cluster_nothing() {
    let (server, cluster) = fixture::serve();
    let ui = Ui::start(&server);
    let mut page = Browser::start();
    page.open(ui.address.split('#').next().unwrap());
    page.until("document.querySelector('#alert').innerText.includes('This address is not valid')");
    assert_eq!(page.value("document.querySelectorAll('.item:not([hidden])').length"), 0);
    // Nor does a page of another site reach it, with whatever secret.
    let secret = ui.address.split('#').nth(1).unwrap();
    let address = ui.address.split("/#").next().unwrap();
    page.open("data:text/html,other");
    page.until("document.body.innerText === 'other'");
    let asked = format!(
        "fetch('{address}/api/timeline', {{headers: {{Authorization: 'Bearer {secret}'}}}}).then(() => 'read', () => 'refused')"
    );
    assert_eq!(page.value(&asked), "refused");
    assert_eq!(cluster.queues.load(Ordering::Relaxed), 0);
}
