//! Why the control part could not do what was asked.

use belfry_core::{JobId, RunId, ShardId, Version};

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("job {0} does not exist")]
    NoSuchJob(JobId),
    #[error("run {0} does not exist")]
    NoSuchRun(RunId),
    #[error("shard {0} has no owner at the moment; try again in some seconds")]
    NotOwned(ShardId),
    #[error("the coordinator does not answer; nothing was changed, try again")]
    CoordinatorAway,
    #[error("the store does not answer; try again")]
    StoreAway(#[source] belfry_store::StoreError),
    #[error(
        "the store does not answer, and so many runs wait for it that none is started any more; bring it back and try again"
    )]
    TooMuchUnrecorded,
    #[error(
        "so many runs are open that the coordinator has room for no more; try again when some have ended, or raise etcd's quota"
    )]
    NoRoom,
    #[error("this server is stopping")]
    Stopping,
    #[error("the job runs on each of its nodes; say on which one it is to run now")]
    WhichNode,
    #[error("no node can be the job's home at the moment; `belfry explain` says why")]
    NoHome,
    #[error("{0}")]
    NotKept(String),
    #[error("the state was changed in the meantime and is at version {0}; read it again and repeat the change")]
    StateChanged(Version),
    #[error(
        "the saved state of jobs takes all the room that it may have in the coordinator; remove some and try again"
    )]
    NoRoomForState,
    #[error("node {0} runs it and is not connected; it cannot be told")]
    NodeAway(String),
    #[error("a service always runs; to start it again kill its run, to start it elsewhere move it")]
    IsService,
    #[error("the job is no service, and has nothing to move; its next run is placed when it is due")]
    NotAService,
    #[error("the service does not run at the moment; `belfry explain` says why")]
    NotRunning,
    #[error("the service runs on that node already, or that node cannot take it; `belfry node ls` says why")]
    CannotMoveThere,
    #[error("no other node can take the service; `belfry node ls` says why")]
    NowhereToMove,
}

impl ControlError {
    pub fn is_transient(&self) -> bool {
        match self {
            ControlError::NotOwned(_)
            | ControlError::CoordinatorAway
            | ControlError::StoreAway(_)
            | ControlError::TooMuchUnrecorded
            | ControlError::NoRoom
            | ControlError::Stopping
            | ControlError::NoHome
            | ControlError::NoRoomForState
            | ControlError::NodeAway(_)
            | ControlError::NotRunning => true,
            ControlError::NoSuchJob(_)
            | ControlError::NoSuchRun(_)
            | ControlError::WhichNode
            | ControlError::NotKept(_)
            | ControlError::StateChanged(_)
            | ControlError::IsService
            | ControlError::NotAService
            | ControlError::CannotMoveThere
            | ControlError::NowhereToMove => false,
        }
    }
}
