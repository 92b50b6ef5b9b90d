//! Promises about users, tokens and sessions.

use belfry_core::role::{Grants, Role};

use super::sample::{ann, at};
use crate::{NewToken, NewUser, SecretHash, Store, StoreError, TokenOwner, UserChange};

pub async fn an_admin_always_stays(store: Store) {
    user(&store, "root", Role::Admin).await;
    user(&store, "viewer", Role::Viewer).await;
    let again = NewUser { name: "root".into(), password_hash: "x".into(), grants: Grants::default() };
    assert!(matches!(store.create_user(again, at(1), &ann()).await, Err(StoreError::NameTaken { .. })));
    let demoted = UserChange { grants: Some(Grants::everywhere(Role::Editor)), ..Default::default() };
    let disabled = UserChange { disabled: Some(true), ..Default::default() };
    for change in [&demoted, &disabled] {
        assert!(matches!(store.update_user("root", change.clone(), at(1), &ann()).await, Err(StoreError::LastAdmin)));
    }
    assert!(matches!(store.remove_user("root", at(1), &ann()).await, Err(StoreError::LastAdmin)));
    assert!(matches!(store.remove_user("nobody", at(1), &ann()).await, Err(StoreError::NotFound)));
    assert!(matches!(store.update_user("nobody", disabled.clone(), at(1), &ann()).await, Err(StoreError::NotFound)));
    let promoted = UserChange { grants: Some(Grants::everywhere(Role::Admin)), ..Default::default() };
    assert!(store.update_user("viewer", promoted, at(2), &ann()).await.unwrap().grants.allow_everywhere(Role::Admin));
    store.update_user("root", disabled, at(3), &ann()).await.unwrap();
    assert!(matches!(store.remove_user("viewer", at(3), &ann()).await, Err(StoreError::LastAdmin)));
    assert_eq!(store.list_users().await.unwrap().len(), 2);
}

pub async fn of_two_admins_who_remove_each_other_one_stays(store: Store) {
    for _ in 0..10 {
        for name in ["a", "b"] {
            if store.user(name).await.unwrap().is_none() {
                user(&store, name, Role::Admin).await;
            }
        }
        let ann = ann();
        let (a, b) = tokio::join!(store.remove_user("a", at(1), &ann), store.remove_user("b", at(1), &ann));
        assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
        assert_eq!(store.list_users().await.unwrap().len(), 1);
    }
}

pub async fn a_secret_is_good_until_it_expires_or_its_user_is_disabled(store: Store) {
    user(&store, "root", Role::Admin).await;
    user(&store, "joe", Role::Viewer).await;
    let token = |id: &str, owner, expires_at| NewToken {
        id: id.into(),
        owner,
        label: "ci".into(),
        secret: SecretHash::of(id),
        grants: Grants::everywhere(Role::Viewer),
        expires_at,
    };
    let joe = || TokenOwner::User("joe".into());
    let ghost = token("t0", TokenOwner::User("ghost".into()), None);
    assert!(matches!(store.create_token(ghost, at(0), &ann()).await, Err(StoreError::NotFound)));
    store.create_token(token("t1", joe(), Some(at(10))), at(0), &ann()).await.unwrap();
    store.create_token(token("t2", joe(), None), at(0), &ann()).await.unwrap();
    store.create_token(token("t3", TokenOwner::Service("deploy".into()), None), at(0), &ann()).await.unwrap();
    let good = async |id: &str, second| store.token_of(SecretHash::of(id), at(second)).await.unwrap().is_some();
    assert!(good("t1", 9).await && !good("t1", 10).await && good("t2", 10).await && !good("t9", 1).await);
    let used = store.token_of(SecretHash::of("t2"), at(1)).await.unwrap().unwrap();
    store.token_used(&used, at(5)).await.unwrap();
    assert_eq!(store.list_tokens(Some("joe")).await.unwrap()[1].last_used_at, Some(at(5)));
    store.update_user("joe", UserChange { disabled: Some(true), ..Default::default() }, at(1), &ann()).await.unwrap();
    assert!(!good("t2", 10).await && good("t3", 10).await);
    store.remove_user("joe", at(2), &ann()).await.unwrap();
    assert_eq!(store.list_tokens(None).await.unwrap().len(), 1);
    store.remove_token("t3", at(3), &ann()).await.unwrap();
    assert!(matches!(store.remove_token("t3", at(3), &ann()).await, Err(StoreError::NotFound)));
}

pub async fn a_new_password_ends_sessions(store: Store) {
    user(&store, "root", Role::Admin).await;
    let login = async |secret: &str| store.create_session(SecretHash::of(secret), "root", at(0), at(100), &ann()).await;
    let who = async |secret: &str, second| {
        store.session_user(SecretHash::of(secret), at(second)).await.unwrap().map(|user| user.name)
    };
    login("s1").await.unwrap();
    assert_eq!(who("s1", 99).await.as_deref(), Some("root"));
    assert_eq!(who("s1", 100).await, None);
    store.extend_session(SecretHash::of("s1"), at(200)).await.unwrap();
    assert_eq!(who("s1", 150).await.as_deref(), Some("root"));
    store
        .update_user("root", UserChange { password_hash: Some("new".into()), ..Default::default() }, at(1), &ann())
        .await
        .unwrap();
    assert_eq!(who("s1", 2).await, None);
    login("s2").await.unwrap();
    store.remove_session(SecretHash::of("s2"), at(3), &ann()).await.unwrap();
    store.remove_session(SecretHash::of("s2"), at(3), &ann()).await.unwrap();
    assert_eq!(who("s2", 4).await, None);
    let nobody = store.create_session(SecretHash::of("s3"), "nobody", at(0), at(9), &ann()).await;
    assert!(matches!(nobody, Err(StoreError::NotFound)));
}

async fn user(store: &Store, name: &str, role: Role) {
    let new = NewUser { name: name.into(), password_hash: "hash".into(), grants: Grants::everywhere(role) };
    store.create_user(new, at(0), &ann()).await.unwrap();
}
