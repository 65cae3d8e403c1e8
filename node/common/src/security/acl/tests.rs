use super::*;

fn lists(superusers: &str, users: &str) -> AccessLists {
    AccessLists::new("kudu", superusers, users).expect("well formed lists")
}

#[test]
fn each_role_lets_its_callers_in() {
    use MethodRole::*;
    let mut acl = lists("root, admin,", "alice,,bob");
    let roles = [
        Client,
        ClientOrService,
        Superuser,
        SuperuserOrService,
        Service,
        ServiceOnly,
        ClientUnlessFineGrained,
    ];
    let allowed = |acl: &AccessLists, user: &str| -> Vec<MethodRole> {
        roles.into_iter().filter(|role| acl.allows(*role, user)).collect()
    };
    assert_eq!(allowed(&acl, "alice"), [Client, ClientOrService, ClientUnlessFineGrained]);
    assert_eq!(allowed(&acl, "kudu"), [ClientOrService, SuperuserOrService, Service, ServiceOnly]);
    assert_eq!(
        allowed(&acl, "admin"),
        [Client, ClientOrService, Superuser, SuperuserOrService, Service, ClientUnlessFineGrained]
    );
    assert_eq!(allowed(&acl, "mallory"), []);
    assert_eq!(allowed(&acl, ""), []);
    acl.fine_grained = true;
    assert_eq!(allowed(&acl, "bob"), [Client, ClientOrService]);
    assert!(acl.allows(ClientUnlessFineGrained, "root"));
}

#[test]
fn without_superusers_the_service_user_is_one() {
    let acl = lists("", "*");
    assert!(acl.allows(MethodRole::Superuser, "kudu"));
    assert!(!acl.allows(MethodRole::Superuser, "alice"));
    assert!(acl.allows(MethodRole::Client, "alice"), "everyone is a user");
    assert!(!acl.allows(MethodRole::ServiceOnly, "alice"));
}

#[test]
fn reserved_characters_are_rejected_in_names() {
    for text in ["!root", "a,@b", "*,a", "**", "-x", "\"a\"", "'a'", "#a", "$a", "%a", "=a", "+a"] {
        let error = AccessList::parse(text).expect_err(text);
        assert!(error.to_string().contains("reserved"), "{error}");
    }
    assert_eq!(AccessList::parse(" * ").expect("everyone"), AccessList::Everyone);
    assert!(!AccessList::parse("a-b").expect("a name").has("a"), "names match as a whole");
}
