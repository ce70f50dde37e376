//! A real browser, driven by WebDriver.

use crate::support::eventually;
use fantoccini::{
    Client, ClientBuilder, Locator,
    elements::Element,
    wd::{Capabilities, WebDriverCompatibleCommand},
};
use http::Method;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

pub struct Browser {
    pub client: Client,
    driver: Child,
    /// What it keeps, so that no two know of one another.
    _profile: tempfile::TempDir,
}

impl Browser {
    pub async fn open() -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("chromedriver; `scripts/needs chromium chromium-driver` installs it");
        let told = BufReader::new(driver.stdout.take().expect("its output"));
        let mut lines = told.lines().map_while(Result::ok);
        let port = lines
            .find_map(|line| line.rsplit_once("successfully on port ")?.1.trim_end_matches('.').parse::<u16>().ok())
            .expect("chromedriver says where it listens");
        // Whatever else it says must go somewhere, or it would stop.
        std::thread::spawn(move || lines.for_each(drop));
        let profile = tempfile::tempdir().expect("a folder");
        let flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--window-size=1200,900",
            &format!("--user-data-dir={}", profile.path().display()),
        ];
        let mut wanted = Capabilities::new();
        wanted.insert("goog:chromeOptions".to_owned(), json!({ "args": flags }));
        wanted.insert("goog:loggingPrefs".to_owned(), json!({ "browser": "ALL" }));
        // What would be asked by a dialog is an error: nothing that was stored may open one.
        wanted.insert("unhandledPromptBehavior".to_owned(), json!("accept and notify"));
        let mut client = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new());
        let client = client.capabilities(wanted).connect(&format!("http://127.0.0.1:{port}")).await.expect("a browser");
        Self { client, driver, _profile: profile }
    }

    pub async fn go(&self, url: &str) {
        self.client.goto(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    }

    /// Waits until it is there.
    pub async fn find(&self, css: &str) -> Element {
        eventually(css, async || self.client.find(Locator::Css(css)).await.ok()).await
    }

    pub async fn fill(&self, css: &str, text: &str) {
        let field = self.find(css).await;
        field.clear().await.expect("a field");
        field.send_keys(text).await.expect("a field");
    }

    pub async fn click(&self, css: &str) {
        // The page may be replaced between finding and clicking.
        eventually(css, async || self.client.find(Locator::Css(css)).await.ok()?.click().await.ok()).await;
    }

    /// Clicks the button or link with these words.
    pub async fn press(&self, words: &str) {
        let path = format!("//*[self::button or self::a][normalize-space()='{words}']");
        eventually(words, async || self.client.find(Locator::XPath(&path)).await.ok()?.click().await.ok()).await;
    }

    pub async fn text(&self) -> String {
        match self.client.find(Locator::Css("body")).await {
            Ok(body) => body.text().await.unwrap_or_default(),
            Err(_) => String::new(),
        }
    }

    pub async fn sees(&self, words: &str) {
        eventually(words, async || self.text().await.contains(words).then_some(())).await;
    }

    /// Looks again and again at the same page.
    pub async fn sees_after_reloading(&self, words: &str) {
        eventually(words, async || {
            self.client.refresh().await.expect("the page");
            self.text().await.contains(words).then_some(())
        })
        .await;
    }

    /// What it complained of since the last time.
    pub async fn complaints(&self) -> Vec<String> {
        let log = self.client.issue_cmd(BrowserLog).await.expect("its log");
        let lines = log.as_array().cloned().unwrap_or_default();
        lines.iter().filter_map(|line| Some(line["message"].as_str()?.to_owned())).collect()
    }

    pub async fn close(self) {
        let _ = self.client.clone().close().await;
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser too, which would go on without its driver where a test has failed.
        let group = self.driver.id().to_string();
        let _ = Command::new("sh").args(["-c", "kill -9 -\"$1\"", "sh", &group]).status();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Chromium's own way to its console.
#[derive(Debug)]
struct BrowserLog;

impl WebDriverCompatibleCommand for BrowserLog {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/se/log", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &url::Url) -> (Method, Option<String>) {
        (Method::POST, Some(json!({"type": "browser"}).to_string()))
    }
}

/// Whatever a test asks the page itself.
pub async fn told_by(browser: &Browser, script: &str) -> Value {
    browser.client.execute(script, Vec::new()).await.expect("an answer")
}
