//! Chromium, as much of its DevTools protocol as the test needs: by a pipe, so nothing listens.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longest wait for anything on the page.
const WITHIN: Duration = Duration::from_secs(60);
/// Its names: Debian's, and Google's on machines that have it.
const NAMES: [&str; 3] = ["chromium", "google-chrome", "chromium-browser"];

/// A browser with one page.
pub struct Browser {
    process: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    session: Option<String>,
    /// What the page's console says.
    pub console: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Browser {
    /// Starts it with an empty page.
    pub fn start() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found =
            NAMES.iter().find(|name| std::env::split_paths(&path).any(|folder| folder.join(name).exists()));
        let program = found
            .expect("no chromium on the PATH: `hack/prepare browser` installs Debian's package chromium");
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        // The protocol's file descriptors are 3 and 4.
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 0</dev/null 1>&2", "sh", program]);
        command.args([
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
        ]);
        command.args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
        ]);
        command.arg(format!("--user-data-dir={}", folder.path().display()));
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (send, messages) = channel();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                message.pop();
                if send.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let input = process.stdin.take().unwrap();
        let mut browser =
            Self { process, input, messages, last: 0, session: None, console: Vec::new(), _folder: folder };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.size(1440, 900);
        browser
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let id = self.last;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.input.write_all(&[message.to_string().as_bytes(), &[0]].concat()).unwrap();
        loop {
            let message = self.messages.recv_timeout(WITHIN).expect("chromium does not answer");
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            match message["method"].as_str() {
                Some("Runtime.exceptionThrown") => {
                    self.console.push(message["params"]["exceptionDetails"].to_string())
                }
                // Answers that are refusals, or come late on a busy machine, are said on the page.
                Some("Log.entryAdded") if message["params"]["entry"]["source"] != "network" => {
                    self.console.push(message["params"]["entry"]["text"].to_string());
                }
                _ => {}
            }
        }
    }

    /// Sets the size of the window.
    pub fn size(&mut self, width: u32, height: u32) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}),
        );
    }

    /// Light or dark, as the reader prefers.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Opens an address.
    pub fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({"url": address}));
    }

    /// The value of an expression; a promise is awaited.
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true});
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Waits until the expression is true.
    pub fn until(&mut self, expression: &str) {
        let begin = Instant::now();
        while self.value(&format!(
            "(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()"
        )) != true
        {
            let text = self.value("document.body?.innerText");
            assert!(begin.elapsed() < WITHIN, "never: {expression}\n{text}\n{:?}", self.console);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Clicks in the middle of the first element that the selector names.
    pub fn click(&mut self, selector: &str) {
        let place = format!(
            "(() => {{ const e = document.querySelector({selector:?}); e.scrollIntoView({{block: 'nearest'}}); const r = e.getBoundingClientRect(); \
             return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        );
        let place = self.value(&place);
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            self.call(
                "Input.dispatchMouseEvent",
                json!({"type": kind, "x": place[0], "y": place[1], "button": button, "clickCount": 1}),
            );
        }
    }

    /// Presses and releases a key.
    pub fn key(&mut self, key: &str) {
        let text = if key.chars().count() == 1 { key } else { "" };
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "ArrowDown" => 40,
            _ => 0,
        };
        self.call(
            "Input.dispatchKeyEvent",
            json!({"type": "keyDown", "key": key, "text": text, "windowsVirtualKeyCode": code}),
        );
        self.call(
            "Input.dispatchKeyEvent",
            json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code}),
        );
    }

    /// Types into what has the focus.
    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// A picture of the page as PNG in the folder of `SCREENSHOTS`, if there is one.
    pub fn screenshot(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("SCREENSHOTS") else { return };
        let picture = self.call("Page.captureScreenshot", json!({"format": "png"}))["data"].clone();
        let bytes: k8s_openapi::ByteString = serde_json::from_value(picture).unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(std::path::Path::new(&folder).join(format!("{name}.png")), bytes.0).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
