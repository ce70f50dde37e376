//! A real Redis for tests, as durable as it can be and gone with the process that wanted it.
//!
//! A shell starts it and waits for its input to end, which it does however the test process ends.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::{Child, ChildStdin, Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

use tempfile::TempDir;

pub struct RedisServer {
    shell: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<std::process::ChildStdout>,
    port: u16,
    _folder: TempDir,
}

impl RedisServer {
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Alone, and with all slots.
    pub fn start_as_cluster() -> Self {
        let bus = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Self::start_with(&format!("--cluster-enabled yes --cluster-port {bus}"));
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        redis::cmd("CLUSTER").arg(&["ADDSLOTSRANGE", "0", "16383"]).exec(&mut connection).unwrap();
        let is_ready = (0..200).any(|_| {
            let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut connection).unwrap();
            let is_ready = info.contains("cluster_state:ok");
            if !is_ready {
                std::thread::sleep(Duration::from_millis(50));
            }
            is_ready
        });
        assert!(is_ready, "the cluster did not come to be");
        server
    }

    fn start_with(settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Nobody listens there now. Where another process is quicker, the test fails and says so.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut shell = Command::new("sh")
            .args(["-c", KEEPER, "keeper", &port.to_string(), folder.path().to_str().unwrap(), settings])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell can be started");
        let orders = shell.stdin.take();
        let answers = BufReader::new(shell.stdout.take().unwrap());
        let mut server = Self { shell, orders, answers, port, _folder: folder };
        server.order("start");
        assert!(server.is_up(), "Redis did not start; is it installed? scripts/needs redis-server");
        server
    }

    /// The one of this process. None of its tests may end it under the others.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<RedisServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// As in a crash: `kill -9`, and then it is started again on what it had written.
    pub fn crash_and_restart(&mut self) {
        self.order("kill");
        self.order("start");
        assert!(self.is_up(), "Redis did not start again");
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer.trim(), "done", "{order}");
    }

    /// It answers only once it has read what it had written.
    fn is_up(&self) -> bool {
        let client = redis::Client::open(self.url()).unwrap();
        (0..200).any(|_| {
            let up =
                client.get_connection().and_then(|mut connection| redis::cmd("PING").query::<String>(&mut connection));
            if up.is_err() {
                std::thread::sleep(Duration::from_millis(50));
            }
            up.is_ok()
        })
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.shell.wait();
    }
}

const KEEPER: &str = r#"
trap '' PIPE HUP INT TERM
pid=
while read -r order; do
    case $order in
    start)
        redis-server --port "$1" --bind 127.0.0.1 --dir "$2" --appendonly yes --appendfsync always --save '' \
            --maxmemory-policy noeviction $3 </dev/null >>"$2/log" 2>&1 &
        pid=$! ;;
    kill) kill -9 "$pid"; wait "$pid" 2>/dev/null ;;
    esac
    echo done
done
kill -9 "$pid" 2>/dev/null
"#;
