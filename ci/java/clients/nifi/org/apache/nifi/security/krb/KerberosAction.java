package org.apache.nifi.security.krb;

import java.security.PrivilegedExceptionAction;

import org.apache.nifi.logging.ComponentLog;

/** Place of a class that no registry has; see {@link KerberosUser}. */
public final class KerberosAction<T> {
  public KerberosAction(KerberosUser user, PrivilegedExceptionAction<T> action, ComponentLog logger) {
  }

  public T execute() {
    throw new UnsupportedOperationException("Kerberos");
  }
}
