package org.apache.nifi.security.krb;

/** Place of a class that no registry has; the processor names it, and uses it only with Kerberos. */
public interface KerberosUser {
  void login();

  void logout();
}
