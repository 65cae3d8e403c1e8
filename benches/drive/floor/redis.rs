//! Client of Redis: SET and GET.

use benches::ycsb;
use redis::aio::MultiplexedConnection;

use super::{Done, Failure, Operation, Options, System};

pub(super) struct RedisClient {
    connection: MultiplexedConnection,
}

/// Connects each client.
pub(super) async fn open(options: &Options) -> Result<Vec<RedisClient>, Failure> {
    let client = redis::Client::open(format!("redis://{}/", options.address))?;
    let mut clients = Vec::new();
    for _ in 0..options.clients {
        clients.push(RedisClient { connection: client.get_multiplexed_async_connection().await? });
    }
    Ok(clients)
}

impl System for RedisClient {
    async fn operate(&mut self, operation: Operation, row: u64) -> Done {
        let key = ycsb::key(row);
        match operation {
            Operation::Insert | Operation::Update => {
                let set = redis::cmd("SET").arg(key).arg(ycsb::fields(row)).to_owned();
                set.exec_async(&mut self.connection).await?;
            }
            Operation::Read => {
                let get = redis::cmd("GET").arg(&key).to_owned();
                let value: Option<Vec<u8>> = get.query_async(&mut self.connection).await?;
                if value.is_none() {
                    return Err(format!("{key} does not exist").into());
                }
            }
        }
        Ok(())
    }
}
