//! A connection to the database that can be cut at the worst moment.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Passes everything on, until it is told to lose an answer.
pub struct Proxy {
    pub port: u16,
    lose_next_commit: Arc<AtomicBool>,
}

impl Proxy {
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let lose_next_commit = Arc::new(AtomicBool::new(false));
        let armed = Arc::clone(&lose_next_commit);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass_on(client, server, Arc::clone(&armed)));
            }
        });
        Self { port, lose_next_commit }
    }

    /// The next COMMIT reaches the server, and its answer nobody.
    pub fn lose_next_commit(&self) {
        self.lose_next_commit.store(true, SeqCst);
    }

    pub fn has_lost_it(&self) -> bool {
        !self.lose_next_commit.load(SeqCst)
    }
}

async fn pass_on(mut client: TcpStream, server: SocketAddr, armed: Arc<AtomicBool>) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let (mut asked, mut answered) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        tokio::select! {
            Ok(read) = client.read(&mut asked) => {
                if read == 0 || server.write_all(&asked[..read]).await.is_err() {
                    return;
                }
                let commits = asked[..read].windows(6).any(|word| word == b"COMMIT");
                if commits && armed.swap(false, SeqCst) {
                    // The server answers once it is done, and then the answer is dropped along with the connection.
                    let _ = server.read(&mut answered).await;
                    return;
                }
            }
            Ok(read) = server.read(&mut answered) => {
                if read == 0 || client.write_all(&answered[..read]).await.is_err() {
                    return;
                }
            }
            else => return,
        }
    }
}
